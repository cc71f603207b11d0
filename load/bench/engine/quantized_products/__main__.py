"""`python -m load.bench.engine.quantized_products`: one product by quantised weights, with our kernels and those of
torch, oneDNN and, with `--gptqmodel-python PATH`, gptqmodel.

In each round all ways take turns. Each multiplies by one copy of its weights after another, together twice as large as
the last-level cache, so that weights come from memory as in a decoding model. Run it with the environment variable
GLIBC_TUNABLES=glibc.malloc.hugetlb=1: all weights are then in huge pages, as those of a server are.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from load.bench import drivers
from load.bench.drivers.process import Process
from load.bench.engine.quantized_products import of_onednn, of_torch, own
from load.bench.engine.quantized_products.cases import SHAPES, Case, Shape
from load.bench.engine.quantized_products.measure import Found, Scale, measure
from load.bench.engine.quantized_products.of_gptqmodel import Driven
from load.bench.engine.quantized_products.report import properties_table, ratios_table, times_table
from load.bench.engine.quantized_products.ways import InProcess, Runner, Unavailable, Way, last_cache
from load.report import machine

WAYS = own.WAYS | of_torch.WAYS | of_onednn.WAYS
BASE = next(iter(own.WAYS))
DRIVER = Path(drivers.__file__).parent / "of_gptqmodel.py"


def compare(
    shape: Shape, scale: Scale, ways: Mapping[str, Way] = WAYS, process: Process | None = None
) -> tuple[dict[str, Found], dict[str, str]]:
    """What was measured of each way, and why others are unavailable."""
    case, cache = Case.of(shape), last_cache()
    unavailable: dict[str, str] = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        runners = dict(_runners(case, cache, ways, unavailable))
        if process:
            _, kernels, errors = process.about
            unavailable |= {_named(kernel): error for kernel, error in errors.items()}
            for kernel in kernels:
                runners[_named(kernel)] = Driven(process, kernel, case, Path(folder), cache)
        return measure(runners, shape, scale), unavailable


def _runners(
    case: Case, cache: int, ways: Mapping[str, Way], unavailable: dict[str, str]
) -> Iterator[tuple[str, Runner]]:
    for name, way in ways.items():
        try:
            yield name, InProcess(way(case), cache)
        except Unavailable as error:
            unavailable[name] = str(error)


def _named(kernel: str) -> str:
    return f"gptqmodel {kernel}, GPTQ"


def main(arguments: list[str] | None = None, shapes: Sequence[Shape] = SHAPES, scale: Scale | None = None) -> None:
    given = _parser().parse_args(arguments)
    scale = replace(scale or Scale(), **({"rounds": given.rounds} if given.rounds else {}))
    load = os.getloadavg()[0]
    about = f"torch {torch.__version__}, {torch.get_num_threads()} threads, last-level cache {last_cache() >> 20} MiB"
    all_found = {}
    with ExitStack() as stack:
        process = None
        if given.gptqmodel_python:
            process = stack.enter_context(Process(str(given.gptqmodel_python), str(DRIVER)))
            about += f"; {process.about[0]}"
        print(f"{machine()}; {about}; {scale.rounds} rounds; huge pages: {_huge_pages()}", flush=True)
        for shape in given.shape or shapes:
            ways = {name: way for name, way in WAYS.items() if not given.way or name in given.way}
            found, unavailable = compare(shape, scale, ways, process)
            all_found[shape.name] = {name: asdict(one) for name, one in found.items()}
            _print(shape, scale, found, unavailable)
    print(f"\nLoad averages of a minute before and after: {load:.1f}, {os.getloadavg()[0]:.1f}.")
    if given.json:
        given.json.write_text(json.dumps(all_found, indent=1) + "\n")


def _print(shape: Shape, scale: Scale, found: dict[str, Found], unavailable: dict[str, str]) -> None:
    print(f"\n### {shape.name}: {shape.inputs} inputs, {shape.outputs} outputs\n\nMicroseconds of a product:\n")
    print(times_table(found, scale.row_counts))
    if BASE in found:
        print(f"\nTimes as fast as {BASE}:\n\n{ratios_table(found, scale.row_counts, BASE)}")
    print(f"\n{properties_table(found)}", flush=True)
    for name, error in unavailable.items():
        print(f"\n- {name} is unavailable: {error}")


def _huge_pages() -> str:
    return "yes" if "glibc.malloc.hugetlb=1" in os.environ.get("GLIBC_TUNABLES", "") else "no"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m load.bench.engine.quantized_products", description=__doc__)
    about = "instead of products of real models; may be repeated"
    parser.add_argument("--shape", action="append", type=Shape.parse, metavar="INPUTSxOUTPUTS", help=about)
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, help=f"default: {Scale().rounds}")
    parser.add_argument("--gptqmodel-python", type=Path, metavar="PATH", help="its python has gptqmodel")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured to this file")
    return parser


if __name__ == "__main__":
    main()
