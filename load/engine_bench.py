"""The engine against its machine, in this process, without Ray and Redis: `python -m load.engine_bench`.

Prints floor, time and ratio of each phase, where the time of an increment iteration goes, and what sampling and the log
probabilities of prompts cost; see docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from load.engine_floor.machine_rates import measure_rates
from load.engine_floor.model_shape import ModelShape
from load.engine_floor.perplexity import measure_perplexities, perplexities_table
from load.engine_floor.phases import CONTEXT, MAX_BATCH_SIZE, PHASES, Subject
from load.engine_floor.report import Report, phases_table, rates_table, shares_table
from load.engine_floor.sampling import measure_sampling, sampling_table
from load.engine_floor.scoring import measure_scoring, scoring_table
from load.engine_floor.shares import measure_shares
from load.machine import machine
from load.options import Options, engine_settings, model_folder
from services.engine import placement
from services.engine.engine import Engine
from services.engine.model_config import load_config
from services.files import user_cache

PARTS = (*PHASES, "shares", "sampler", "scoring", "perplexity")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.engine_bench", description="The engine against its machine.")
    parser.add_argument("--part", action="append", choices=PARTS, help="run only this part; may be repeated")
    parser.add_argument("--model", default="default", help="a transformers folder, a GGUF file, a hub id or 'default'")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--weights", default="dtype", choices=["dtype", "int8"])
    parser.add_argument("--stock", action="store_true", help="transformers' own layers, also where the lean path runs")
    parser.add_argument("--cache-dir", type=Path, default=user_cache(), help="where converted models are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured to this file")
    given = parser.parse_args(arguments)
    options = Options(given.model, given.device, given.dtype, given.cache_dir, given.weights, not given.stock)
    report = run(options, given.part or PARTS)
    if given.json:
        given.json.write_text(json.dumps(report.json(), indent=1) + "\n")


def run(options: Options, parts: Sequence[str]) -> Report:
    """Measure the machine, then the engine in these parts; prints as it goes."""
    folder = model_folder(options)
    settings = engine_settings(options)
    engine = Engine.load(folder, settings)
    device = placement.choose_device(settings)
    decoder = engine.decoder
    shape = ModelShape.of(load_config(folder), decoder.weight_dtype, decoder.cache_dtype)
    load = [os.getloadavg()[0]]
    rates = measure_rates(device, decoder.weight_dtype, *shape.widest)
    report = Report(machine(), f"{engine.figures.model} {engine.figures.numerics}", rates, shape.widest, load)
    print(f"{report.machine}; {report.numerics}; load average {load[0]:.1f}\n")
    print(rates_table(rates, report.matrix), flush=True)
    for part in parts:
        print(f"\n## {part}\n", flush=True)
        if part == "shares":
            report.shares = measure_shares(engine, MAX_BATCH_SIZE, CONTEXT)
            print(shares_table(report.shares), flush=True)
        elif part == "sampler":
            report.sampling = list(measure_sampling(engine, device))
            print(sampling_table(report.sampling), flush=True)
        elif part == "scoring":
            report.scoring = list(measure_scoring(engine))
            print(scoring_table(report.scoring), flush=True)
        elif part == "perplexity":
            report.perplexities = list(measure_perplexities(folder, settings))
            print(perplexities_table(report.perplexities), flush=True)
        else:
            measured = list(PHASES[part](Subject(engine, shape, rates)))
            report.phases += measured
            print(phases_table(measured), flush=True)
    load.append(os.getloadavg()[0])
    print(f"\nload average {load[1]:.1f}")
    return report


if __name__ == "__main__":
    main()
