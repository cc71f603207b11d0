"""`python -m load.bench`: the engine beside what its machine can do, without Ray, Redis, pydantic or a network.

The model is a real one (`--model`), or random weights in the shape of one (`--shape`). Without `--part`, a CPU runs the
parts that time the engine, and a GPU all: first those that tell whether it computes what it should.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import torch

from load.arguments import add_options, chosen, parser_of
from load.bench import phases
from load.bench.bench import Bench, Budget, PartResult
from load.bench.drafts import drafts
from load.bench.rates import rates_table
from load.bench.sampling import sampler
from load.bench.takeover import takeover
from load.bench.timing import FULL, Scale
from load.options import Options
from load.report import machine

LIMIT = 150.0  # seconds of a part on a GPU
STDERR = 2  # the descriptor
TESTERS = 10  # processes, whose memory on the device is small
GRACE = 30.0  # seconds after the run's end in which a part may end
TESTS = ("tests/services", "tests/load")  # where tests are that need a GPU


def models(bench: Bench) -> PartResult:
    """Tiny models of all families: tokens against `generate`, and bits, by the tests of a GPU. They are processes of
    their own, so that a fault there costs nothing here."""
    bench.release()
    files = [path for folder in TESTS for path in sorted(Path(folder).rglob("test_*.py"))]
    tests = [str(path) for path in files if "mark.gpu" in path.read_text()]
    told = ["-m", "gpu", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", "--show-capture=no"]
    if find_spec("xdist"):  # most of the time kernels are compiled
        told += ["-n", str(min(TESTERS, os.cpu_count() or 1))]
    ran = subprocess.run([sys.executable, "-m", "pytest", *told, *tests], capture_output=True, text=True)
    outcomes = [line for line in ran.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR", "SKIPPED"))]
    if ran.returncode:
        others = [line for line in outcomes if not line.startswith("PASSED")]
        counted = f"{len(outcomes) - len(others)} tests passed, pytest ended with {ran.returncode}"
        raise RuntimeError("\n".join([counted, *(others or [ran.stderr[-2000:]])]))
    return PartResult("\n".join(f"- {line}" for line in outcomes), outcomes)


def rates(bench: Bench) -> PartResult:
    """The rates that the floors of all parts are computed from."""
    return PartResult(rates_table(bench.rates, bench.shape.widest), asdict(bench.rates))


def alone(part: str, module: str = "kernels") -> Callable[[Bench], PartResult]:
    """A part in a module that imports Triton. Not every machine has it."""

    def run_part(bench: Bench) -> PartResult:
        found: PartResult = getattr(import_module(f"load.bench.{module}"), part)(bench)
        return found

    return run_part


PARTS: dict[str, tuple[Callable[[Bench], PartResult], str]] = {
    "kernels": (alone("kernels"), "errors of CUDA's products and attention against float64"),
    "bits": (alone("bits"), "hashes of their bits, and what is refused because it has others"),
    "models": (models, "tiny models of all families, by the tests of a GPU"),
    "rates": (rates, "what the machine reaches, which the floors are computed from"),
    "single": (phases.single, "a lone request through the loop"),
    "increments": (phases.increments, "increment iterations beside the floor"),
    "initiations": (phases.initiations, "initiation iterations beside the floor"),
    "mixed": (phases.mixed, "iterations of both kinds beside both run apart"),
    "paper": (phases.paper, "the paper's trace through the loop"),
    "loop": (phases.loop, "200 iterations of 32 requests through the loop: the share inside the engine"),
    "sampler": (sampler, "what sampling costs, beside an increment iteration"),
    "drafts": (drafts, "tokens per second with drafts, scripted and of real texts"),
    "speed": (alone("speed"), "each of CUDA's products beside the library's"),
    "formats": (alone("formats", "formats"), "products by weights as checkpoints store them, of each format"),
    "takeover": (takeover, "engines that are killed under load, and their spares"),
}
OF_A_CPU = ("rates", "single", "increments", "initiations", "mixed", "paper", "sampler", "drafts")


def main(arguments: list[str] | None = None, scale: Scale = FULL) -> int:
    """The exit status: 1 if a part has failed. The other parts run nevertheless."""
    about = {name: what for name, (_, what) in PARTS.items()}
    parser = parser_of("load.bench", __doc__ or "", about)
    add_options(parser, Options)
    parser.add_argument("--weights", default="auto", choices=["auto", "dtype", "int8"])
    parser.add_argument(
        "--kv-cache-dtype", default="auto", choices=["auto", "float32", "bfloat16", "int8_per_token_head"]
    )
    parser.add_argument("--stock", action="store_true", help="transformers' own layers, also where the fast path runs")
    parser.add_argument("--batch-invariant", action="store_true", help="as in `orca serve`")
    parser.add_argument("--minutes", type=float, default=30.0, help="no measurement begins after this time")
    parser.add_argument("--limit", type=float, help=f"seconds of a part; default {LIMIT:g} on a GPU, none on a CPU")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="write DATE-DEVICE-MODEL.json and .md there, after each part"
    )
    given = parser.parse_args(arguments)
    if given.format and not given.shape:
        parser.error("--format quantizes random weights: give --shape, too")
    bench = Bench(
        Options(**chosen(Options, given)),
        Budget(60 * given.minutes),
        scale,
        weights=given.weights,
        kv_cache_dtype=given.kv_cache_dtype,
        fast_path=not given.stock,
        batch_invariant=given.batch_invariant,
    )
    parts, limit = (tuple(PARTS), LIMIT) if bench.device.type == "cuda" else (OF_A_CPU, inf)
    return run(bench, given.part or parts, given.limit or limit, given.results)


def run(bench: Bench, parts: Sequence[str], limit: float, to: Path | None) -> int:
    """Run `parts` in this order, each for `limit` seconds at most, and print each as soon as it is measured; returns as
    `main` does."""
    versions = " ".join(f"{name}-{version(name)}" for name in ("torch", "transformers"))
    described = f"{machine()}; {bench.device_name}; {bench.name}, {bench.dtype}; {versions} CUDA-{torch.version.cuda}"
    described += f"; load average {os.getloadavg()[0]:.1f}"
    print(described, flush=True)
    found: dict[str, Any] = {"machine": described, "model": bench.name, "parts": {}, "failed": {}}
    texts = [f"# {described}"]
    for part in parts:
        began = time.perf_counter()
        try:
            if bench.budget.spent:
                raise TimeoutError("the time is spent")
            with _limit(min(limit, bench.budget.left + GRACE)):
                of_part = PARTS[part][0](bench)
            text, found["parts"][part] = of_part.text, of_part.data
        except Exception as error:  # other parts must run
            traceback.print_exc()
            found["failed"][part] = f"{type(error).__name__}: {error}"
            text = f"Failed: {found['failed'][part]}"
        spent = f"{time.perf_counter() - began:.0f} s; {bench.budget.left:.0f} s are left"
        texts.append(f"## {bench.name}: {part}\n\n{text}\n\n{spent}")
        print(f"\n{texts[-1]}", flush=True)
        found["engine"] = bench.loaded
        if to:
            to.mkdir(parents=True, exist_ok=True)
            file = to / f"{date.today()}-{bench.device_name.replace(' ', '-')}-{bench.name}"
            file.with_name(f"{file.name}.json").write_text(json.dumps(found, indent=1) + "\n")
            file.with_name(f"{file.name}.md").write_text("\n\n".join(texts) + "\n")
    return 1 if found["failed"] else 0


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError within if it takes longer. A wait for the device hears no signal: then the process ends."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    handler = signal.signal(signal.SIGALRM, stop)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, handler)


if __name__ == "__main__":
    raise SystemExit(main())
