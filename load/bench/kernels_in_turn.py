"""`python -m load.bench.kernels_in_turn OLD NEW`: the kernels of several folders, or forms of weights, one iteration
each in turn.

The speed of a shared machine changes from minute to minute by more than most changes of a kernel do. Iterations that
follow each other in one process differ by less.
"""

from __future__ import annotations

import argparse
import math
import mmap
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import torch

from load.bench.engine.batches import Batches
from load.options import KV_CACHE_DTYPES, KVCacheDtype, Options, engine_settings, model_folder
from load.report import machine, table
from services.engine.backends.cpu.build import kernels
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packing import pack_model
from services.engine.batch.kv_cache import KVCache
from services.engine.engine import Engine
from services.engine.settings import DeadlyToken
from services.engine.startup import loading
from services.engine.startup.devices import choose_cache_dtype
from services.files import user_cache

CPU = torch.device("cpu")
WEIGHTS = get_args(get_type_hints(Options)["weights"])
STEPS = 24  # iterations of each kind, after one that is not counted
Kind = tuple[int, int, int, int]
KINDS: dict[str, Kind] = {  # number and context of the increments, number and length of the prompts
    "increment, batch 1": (1, 512, 0, 0),
    "increment, batch 4": (4, 512, 0, 0),
    "increment, batch 8": (8, 512, 0, 0),
    "increment, batch 16": (16, 512, 0, 0),
    "increment, batch 32": (32, 512, 0, 0),
    "initiation, 1 x 512 tokens": (0, 0, 1, 512),
    "30 increments and 2 x 256 tokens": (30, 512, 2, 256),
}
LONG: dict[str, Kind] = {
    "increment, batch 32, context 4,000": (32, 4000, 0, 0)
}  # gigabytes of keys and values for each variant


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine with the kernels of one folder, a form of weights and a format of keys and values, and with its own
    cache."""

    name: str
    engine: Engine
    decoder: CpuDecoder


def main(arguments: list[str] | None = None, steps: int = STEPS) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.kernels_in_turn", description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path, help="a checkout's services/engine/backends/cpu/kernels")
    parser.add_argument("--kind", action="append", choices=list(KINDS | LONG), help="only this kind; may be repeated")
    parser.add_argument("--model", default="default", help="as of orca serve")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    for name, known in (("--weights", WEIGHTS), ("--kv-cache-dtype", KV_CACHE_DTYPES)):
        parser.add_argument(name, action="append", choices=known, help="may be repeated to compare several")
    given = parser.parse_args(arguments)
    kinds = [(KINDS | LONG)[kind] for kind in given.kind or KINDS]
    forms, formats = given.weights or ["auto"], given.kv_cache_dtype or ["auto"]
    variants = [
        one
        for form in forms
        for one in _variants(
            Options(given.model, "cpu", given.dtype, user_cache(), form),
            given.folder,
            formats,
            kinds,
            form if len(forms) > 1 else "",
        )
    ]
    numerics = variants[0].engine.figures.numerics
    print(f"{machine()}; {numerics}, weights {', '.join(forms)}; {steps} iterations each, in turn", flush=True)
    for name, kind in zip(given.kind or KINDS, kinds, strict=True):
        print(f"\n{name}, ms:\n\n{run(variants, *kind, steps)}", flush=True)


def run(variants: Sequence[Variant], batch: int, context: int, prompts: int, length: int, steps: int) -> str:
    """The table of the times of each variant."""
    iterations = [Batches(one.engine).one_by_one(batch, context, prompts, length, 1 + steps) for one in variants]
    rounds = zip(*iterations, strict=True)
    next(rounds)
    before = [one.decoder.seconds() for one in variants]
    times = [[one.seconds for one in of_variant] for of_variant in zip(*rounds, strict=True)]
    rows = []
    for one, seconds, earlier in zip(variants, times, before, strict=True):
        beside = statistics.median(own / first for own, first in zip(seconds, times[0], strict=True))
        parts = [(total - earlier[part]) / steps for part, total in one.decoder.seconds().items()]
        cells = [statistics.median(seconds), min(seconds), *parts]
        rows.append([one.name, f"{beside:.3f}", *(f"{cell * 1e3:.2f}" for cell in cells)])
    return table(["kernels", "ratio to the first", "median", "best", *before[0]], rows)


def _variants(
    options: Options, folders: Sequence[Path], formats: Sequence[KVCacheDtype], kinds: Sequence[Kind], form: str
) -> Iterator[Variant]:
    """The variants with one form of weights, which their names end with."""
    folder, settings = model_folder(options), engine_settings(options)
    own = Engine.load(folder, settings)
    figures, spec = own.figures, loading.fast_path_spec(folder, settings)
    if spec is None:
        raise SystemExit(f"{options.model} is not on the fast path, which alone has kernels")
    for source in folders:
        setup = loading.cpu_setup(
            spec,
            loading.open_model(spec, folder, settings),
            settings,
            figures.max_model_len,
        )
        library = kernels(options.cache_dir, source)
        packed = pack_model(replace(setup, library=library))
        for kept in formats:
            dtype = choose_cache_dtype(replace(settings, kv_cache_dtype=kept), setup.cache_dtype)
            decoder = CpuDecoder(library, replace(packed, cache_dtype=dtype))
            blocks = _blocks(figures.block_size, kinds)
            cache = KVCache(decoder.layers, blocks, figures.block_size, dtype, CPU, allocate=_huge_pages)
            decoder.bind(cache)
            engine = Engine(decoder, cache, figures, own.sampler, DeadlyToken())
            name = " ".join([str(source), *([kept] if len(formats) > 1 else []), *([form] if form else [])])
            yield Variant(name, engine, decoder)


def _huge_pages(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in huge pages, in which a server's KV cache lies too."""
    memory = mmap.mmap(-1, math.prod(shape) * int(dtype.itemsize))
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _blocks(size: int, kinds: Sequence[Kind]) -> int:
    """The blocks that the largest kind needs."""
    return max(
        batch * -(-(context + 1 + STEPS) // size) + prompts * -(-length // size)
        for batch, context, prompts, length in kinds
    )


if __name__ == "__main__":
    main()
