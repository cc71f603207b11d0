"""`python -m load.bench.engine`: the engine beside what its machine can do, without Ray or Redis.

Prints the floor, the time and their ratio for each phase, where the time of an increment iteration goes, and what
sampling and the log probabilities of prompts cost. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from load.bench.engine.floor import ModelShape
from load.bench.engine.perplexity import Perplexity, measure_perplexities, perplexities_table
from load.bench.engine.phases import CONTEXT, MAX_BATCH_SIZE, PHASES, Measured, Subject, phases_table
from load.bench.engine.rates import MachineRates, measure_rates, rates_table
from load.bench.engine.sampling import (
    Sampling,
    Scoring,
    measure_sampling,
    measure_scoring,
    sampling_table,
    scoring_table,
)
from load.bench.engine.shares import Shares, measure_shares, shares_table
from load.bench.engine.timing import FULL, Scale
from load.options import (
    KV_CACHE_DTYPES,
    Options,
    add_model,
    add_numerics,
    engine_settings,
    load_as_served,
    model_folder,
)
from load.report import machine
from services.engine.families.config import load_config
from services.engine.startup import devices

PARTS = (*PHASES, "shares", "sampler", "scoring", "perplexity")


@dataclass(slots=True)
class Report:
    """All that a run measured. `load` has the load averages of a minute before and after."""

    machine: str
    numerics: str
    rates: MachineRates
    matrix: tuple[int, int]  # inputs and outputs of the product whose rates are measured
    load: list[float]
    phases: list[Measured] = field(default_factory=list)
    shares: Shares | None = None
    sampling: list[Sampling] = field(default_factory=list)
    scoring: list[Scoring] = field(default_factory=list)
    perplexities: list[Perplexity] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """As plain lists and dicts."""
        return {**asdict(self), "phases": [one.json() for one in self.phases]}


def main(arguments: list[str] | None = None, scale: Scale = FULL) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine", description="The engine against its machine.")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part; may be repeated")
    add_model(parser)
    add_numerics(parser)
    parser.add_argument("--weights", default="auto", choices=["auto", "dtype", "int8"])
    parser.add_argument("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES)
    parser.add_argument("--stock", action="store_true", help="transformers' own layers, also where the fast path runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured to this file")
    given = parser.parse_args(arguments)
    engine = given.weights, not given.stock, given.kv_cache_dtype
    options = Options(given.model, given.device, given.dtype, given.cache_dir, *engine)
    report = run(options, given.part or PARTS, scale)
    if given.json:
        given.json.write_text(json.dumps(report.json(), indent=1) + "\n")


def run(options: Options, parts: Sequence[str], scale: Scale) -> Report:
    """Measure the machine, then the engine in these parts, and print each as soon as it is measured."""
    folder = model_folder(options)
    settings = engine_settings(options)
    engine = load_as_served(folder, settings)
    device = devices.choose_device(settings)
    decoder = engine.decoder
    shape = ModelShape.of(load_config(folder), decoder.weight_bytes, decoder.cache_dtype)
    load = [os.getloadavg()[0]]
    rates = measure_rates(device, decoder.weight_dtype, *shape.widest, shape.stored, scale)
    report = Report(machine(), f"{engine.figures.model} {engine.figures.numerics}", rates, shape.widest, load)
    print(f"{report.machine}; {report.numerics}; load average {load[0]:.1f}\n")
    print(rates_table(rates, report.matrix), flush=True)
    for part in parts:
        print(f"\n## {part}\n", flush=True)
        if part == "shares":
            report.shares = measure_shares(engine, MAX_BATCH_SIZE, CONTEXT)
            print(shares_table(report.shares), flush=True)
        elif part == "sampler":
            report.sampling = list(measure_sampling(engine, device, scale))
            print(sampling_table(report.sampling), flush=True)
        elif part == "scoring":
            report.scoring = list(measure_scoring(engine, scale))
            print(scoring_table(report.scoring), flush=True)
        elif part == "perplexity":
            report.perplexities = list(measure_perplexities(folder, settings))
            print(perplexities_table(report.perplexities), flush=True)
        else:
            measured = list(PHASES[part](Subject(engine, shape, rates, scale)))
            report.phases += measured
            print(phases_table(measured), flush=True)
    load.append(os.getloadavg()[0])
    print(f"\nload average {load[1]:.1f}")
    return report


if __name__ == "__main__":
    main()
