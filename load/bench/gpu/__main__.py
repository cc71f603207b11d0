"""`python -m load.bench.gpu --model gpt-13b`: the engine on a GPU, with random weights of real configurations.

It needs no Ray, Redis, pydantic or network. See docs/performance.md.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from load.bench.engine.rates import rates_table
from load.bench.engine.sampling import measure_sampling, sampling_table
from load.bench.engine.shares import measure_shares, shares_table
from load.bench.gpu.bench import FULL, Bench, Budget, GpuScale, PartResult
from load.bench.gpu.comparison import generate
from load.bench.gpu.configurations import CONFIGURATIONS
from load.bench.gpu.end_to_end import section_6_2
from load.bench.gpu.engine_alone import section_6_1
from load.bench.gpu.iterations import graphs, increments, initiations, mixed
from load.bench.gpu.outliving import outlives
from load.options import add_numerics
from load.options import parser as part_parser
from load.report import machine, table
from services.engine.settings import EngineSettings


def rates(bench: Bench) -> PartResult:
    """The rates that the floors of all parts are computed from."""
    return PartResult(rates_table(bench.rates, bench.shape.widest), asdict(bench.rates))


def outliving(bench: Bench) -> PartResult:
    """Whether a process's memory on this device outlives it."""
    found = outlives(bench.device.type)
    return PartResult(
        table(["memory made by another process", ""], [[name, str(is_so)] for name, is_so in found.items()]), found
    )


def sampler(bench: Bench) -> PartResult:
    found = list(measure_sampling(bench.engine, bench.device, bench.scale))
    return PartResult(sampling_table(found), [asdict(one) for one in found])


def shares(bench: Bench) -> PartResult:
    """The shares of the largest batch with the first context."""
    of = bench.configuration
    found = measure_shares(bench.engine, of.batches[-1], of.contexts[0])
    return PartResult(shares_table(found), asdict(found))


PARTS: dict[str, tuple[Callable[[Bench], PartResult], str]] = {
    "outliving": (outliving, "whether the memory of a process outlives it"),
    "rates": (rates, "what the machine reaches, which the floors are computed from"),
    "increments": (increments, "increment iterations compared with the floor"),
    "initiations": (initiations, "initiation iterations compared with the floor"),
    "mixed": (mixed, "iterations of both kinds compared with both run apart"),
    "graphs": (graphs, "increment iterations as CUDA graphs and kernel by kernel"),
    "sampler": (sampler, "what sampling costs, beside an increment iteration"),
    "section-6.1": (section_6_1, "the paper's figure 9: the engine alone"),
    "generate": (generate, "transformers' generate and continuous batching, compared with ours"),
    "section-6.2": (section_6_2, "the paper's figure 10: both policies in real time, in the time left"),
    "shares": (shares, "where the time of an increment iteration goes; only if named"),
}
# torch's profiler stays in the process and slows down kernels that are launched one by one afterwards
DEFAULT = [part for part in PARTS if part != "shares"]


def main(arguments: list[str] | None = None, scale: GpuScale = FULL) -> int:
    """The exit status: 1 if a part has failed. The other parts run nevertheless."""
    about = {name: what for name, (_, what) in PARTS.items()}
    parser = part_parser("load.bench.gpu", "The engine on a GPU, with random weights of real configurations.", about)
    parser.add_argument("--model", required=True, choices=CONFIGURATIONS)
    add_numerics(parser)
    parser.add_argument("--stock", action="store_true", help="transformers' own layers, also where the fast path runs")
    parser.add_argument("--batch-invariant", action="store_true", help="as in `orca serve`")
    parser.add_argument(
        "--minutes", type=float, default=7.5, help="no measurement begins after this time (default 7.5)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write what was measured to this file, after each part"
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw figures 9 and 10 (PNG)")
    given = parser.parse_args(arguments)
    budget = Budget(60 * given.minutes)
    configuration = CONFIGURATIONS[given.model]
    settings = EngineSettings(
        given.device,
        given.dtype,
        fast_path=not given.stock,
        batch_invariant=given.batch_invariant,
        max_model_len=configuration.max_model_len,
    )
    bench = Bench(given.model, configuration, settings, budget, given.plots, scale)
    return run(bench, given.part or DEFAULT, given.json)


def run(bench: Bench, parts: Sequence[str], to: Path | None) -> int:
    """Run `parts` in this order and print each as soon as it is measured; returns as `main` does."""
    engine = bench.engine
    figures = engine.figures
    kept = figures.num_blocks * figures.block_size
    described = f"{machine()}; {bench.device_name}; {figures.model}, {figures.numerics}"
    print(f"{described}; random weights; keys and values of {kept:,} tokens", flush=True)
    del engine  # so that `release` can free its memory
    found: dict[str, Any] = {"machine": described, "model": bench.name, "kv_tokens": kept, "parts": {}, "failed": {}}
    for part in parts:
        print(f"\n## {bench.name}: {part}\n", flush=True)
        began = time.perf_counter()
        if bench.budget.spent:
            print("Left out: the time is spent.", flush=True)
            found["failed"][part] = "the time is spent"
            continue
        try:
            of_part = PARTS[part][0](bench)
        except Exception as error:  # other parts must run
            traceback.print_exc()
            found["failed"][part] = f"{type(error).__name__}: {error}"
            print(f"Failed: {found['failed'][part]}", flush=True)
        else:
            found["parts"][part] = of_part.data
            print(of_part.text)
        print(f"\n{time.perf_counter() - began:.0f} s; {bench.budget.left:.0f} s are left", flush=True)
        if to:
            to.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
