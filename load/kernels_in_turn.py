"""Kernels of several folders, one iteration each in turn, in one process: `python -m load.kernels_in_turn OLD NEW`.

The minutes of a shared machine differ by more than most changes do; iterations that follow each other differ by less.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from load.engine_floor.batches import Batches
from load.machine import machine
from load.markdown import table
from load.options import Options, engine_settings, model_folder
from services.engine import loading
from services.engine.deadly import DeadlyToken
from services.engine.engine import Engine
from services.engine.kv_cache import KVCache
from services.engine.lean.shard import Shard
from services.engine.lean.weights import DecoderWeights
from services.engine.native.build import kernels
from services.engine.native.decoder import NativeDecoder
from services.files import user_cache

CPU = torch.device("cpu")
STEPS = 24  # iterations of each kind that are counted; one before them is not
KINDS = {  # increments, their context, prompts, their length
    "increment, batch 1": (1, 512, 0, 0),
    "increment, batch 4": (4, 512, 0, 0),
    "increment, batch 32": (32, 512, 0, 0),
    "initiation, 1 x 512 tokens": (0, 0, 1, 512),
    "30 increments and 2 x 256 tokens": (30, 512, 2, 256),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine with the kernels of one folder, and weights and a cache of its own."""

    name: str
    engine: Engine
    decoder: NativeDecoder


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m load.kernels_in_turn", description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path, help="a checkout's services/engine/native/kernels")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this one; may be repeated")
    parser.add_argument("--model", default="default", help="as of orca serve")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--weights", default="dtype", choices=["dtype", "int8"])
    given = parser.parse_args(arguments)
    options = Options(given.model, "cpu", given.dtype, user_cache(), given.weights)
    variants = list(_variants(options, given.folder))
    numerics = variants[0].engine.figures.numerics
    print(f"{machine()}; {numerics}, weights {given.weights}; {STEPS} iterations each, in turn", flush=True)
    for kind in given.kind or KINDS:
        print(f"\n{kind}, ms:\n\n{run(variants, *KINDS[kind])}", flush=True)


def run(variants: Sequence[Variant], batch: int, context: int, prompts: int, length: int) -> str:
    """A table of what each took."""
    going = [Batches(one.engine).one_by_one(batch, context, prompts, length, 1 + STEPS) for one in variants]
    rounds = zip(*going, strict=True)
    next(rounds)
    before = [one.decoder.seconds() for one in variants]
    times = [[ran.seconds for ran in ran_by] for ran_by in zip(*rounds, strict=True)]
    rows = []
    for one, seconds, earlier in zip(variants, times, before, strict=True):
        beside = statistics.median(own / first for own, first in zip(seconds, times[0], strict=True))
        parts = [(total - earlier[part]) / STEPS for part, total in one.decoder.seconds().items()]
        cells = [statistics.median(seconds), min(seconds), *parts]
        rows.append([one.name, f"{beside:.3f}", *(f"{cell * 1e3:.2f}" for cell in cells)])
    return table(["kernels", "beside the first", "median", "best", *before[0]], rows)


def _variants(options: Options, folders: Sequence[Path]) -> Iterator[Variant]:
    folder, settings = model_folder(options), engine_settings(options)
    own = Engine.load(folder, settings)
    figures, spec = own.figures, loading.lean_spec(folder, settings)
    if spec is None:
        raise SystemExit(f"{options.model} is not on the lean path, which alone has kernels")
    for source in folders:
        setup = loading.native_setup(spec, DecoderWeights(spec, folder, Shard()), settings, figures.max_model_len)
        decoder = NativeDecoder(replace(setup, library=kernels(options.cache_dir, source)))
        cache = KVCache(decoder.layers, _blocks(figures.block_size), figures.block_size, decoder.cache_dtype, CPU)
        decoder.bind(cache)
        yield Variant(str(source), Engine(decoder, cache, figures, own.sampler, DeadlyToken()), decoder)


def _blocks(size: int) -> int:
    """What the largest of all kinds needs."""
    return max(
        batch * -(-(context + 1 + STEPS) // size) + prompts * -(-length // size)
        for batch, context, prompts, length in KINDS.values()
    )


if __name__ == "__main__":
    main()
