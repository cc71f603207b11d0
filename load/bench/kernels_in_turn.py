"""`python -m load.bench.kernels_in_turn OLD NEW`: the kernels of several folders, one iteration each in turn.

The speed of a shared machine changes from minute to minute by more than most changes of a kernel do. Iterations that
follow each other in one process differ by less.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from load.bench.engine.batches import Batches
from load.options import Options, engine_settings, model_folder
from load.report import machine, table
from services.engine.backends.cpu.build import kernels
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packing import pack_model
from services.engine.batch.kv_cache import KVCache
from services.engine.engine import Engine
from services.engine.families.registry import open_weights
from services.engine.settings import DeadlyToken
from services.engine.startup import loading
from services.files import user_cache

CPU = torch.device("cpu")
STEPS = 24  # iterations of each kind, after one that is not counted
KINDS = {  # number and context of the increments, number and length of the prompts
    "increment, batch 1": (1, 512, 0, 0),
    "increment, batch 4": (4, 512, 0, 0),
    "increment, batch 32": (32, 512, 0, 0),
    "initiation, 1 x 512 tokens": (0, 0, 1, 512),
    "30 increments and 2 x 256 tokens": (30, 512, 2, 256),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine with the kernels of one folder, and with its own weights and cache."""

    name: str
    engine: Engine
    decoder: CpuDecoder


def main(arguments: list[str] | None = None, steps: int = STEPS) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.kernels_in_turn", description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path, help="a checkout's services/engine/backends/cpu/kernels")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="run only this kind; may be repeated")
    parser.add_argument("--model", default="default", help="as of orca serve")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--weights", default="auto", choices=["auto", "dtype", "int8"])
    given = parser.parse_args(arguments)
    options = Options(given.model, "cpu", given.dtype, user_cache(), given.weights)
    variants = list(_variants(options, given.folder))
    numerics = variants[0].engine.figures.numerics
    print(f"{machine()}; {numerics}, weights {given.weights}; {steps} iterations each, in turn", flush=True)
    for kind in given.kind or KINDS:
        print(f"\n{kind}, ms:\n\n{run(variants, *KINDS[kind], steps)}", flush=True)


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


def _variants(options: Options, folders: Sequence[Path]) -> Iterator[Variant]:
    folder, settings = model_folder(options), engine_settings(options)
    own = Engine.load(folder, settings)
    figures, spec = own.figures, loading.fast_path_spec(folder, settings)
    if spec is None:
        raise SystemExit(f"{options.model} is not on the fast path, which alone has kernels")
    for source in folders:
        setup = loading.cpu_setup(
            spec,
            open_weights(spec, folder, as_stored=loading.executes_as_stored(settings)),
            settings,
            figures.max_model_len,
        )
        library = kernels(options.cache_dir, source)
        decoder = CpuDecoder(library, pack_model(replace(setup, library=library)))
        cache = KVCache(decoder.layers, _blocks(figures.block_size), figures.block_size, decoder.cache_dtype, CPU)
        decoder.bind(cache)
        yield Variant(str(source), Engine(decoder, cache, figures, own.sampler, DeadlyToken()), decoder)


def _blocks(size: int) -> int:
    """The blocks that the largest kind needs."""
    return max(
        batch * -(-(context + 1 + STEPS) // size) + prompts * -(-length // size)
        for batch, context, prompts, length in KINDS.values()
    )


if __name__ == "__main__":
    main()
