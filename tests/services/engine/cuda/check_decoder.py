"""The whole decoder in Triton's interpreter, on the CPU and without graphs. Run by test_interpreted.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driver import Driver, Job
from test_families import generate

from services.engine.cuda.decoder import CudaDecoder
from services.engine.cuda.setup import CudaSetup
from services.engine.cuda.tiles import Tiles
from services.engine.deadly import DeadlyToken
from services.engine.engine import Engine
from services.engine.kv_cache import KVCache
from services.engine.lean.shard import Shard
from services.engine.lean.spec import DecoderSpec
from services.engine.lean.weights import DecoderWeights
from services.engine.loading import load_config
from services.messages import EngineFigures
from services.requests import SamplingParams

CPU = torch.device("cpu")


def make_engine(folder: Path, block_size: int, batch_invariant: bool = False) -> Engine:
    config = load_config(folder)
    spec = DecoderSpec.of(config)
    assert spec
    weights = DecoderWeights(spec, folder, Shard())
    tiles = Tiles(rows=16, keys=16, split=32)
    decoder = CudaDecoder(CudaSetup(spec, config, weights, torch.float32, CPU, 256, batch_invariant, tiles))
    cache = KVCache(decoder.layers, 64, block_size, torch.float32, CPU)
    decoder.bind(cache)
    figures = EngineFigures("tiny", 256, 64, block_size, spec.vocab, decoder.path)
    return Engine(decoder, cache, figures, frozenset(), DeadlyToken(-1))


def make_jobs(**sampling: object) -> list[Job]:
    rng = random.Random(3)
    return [
        Job(f"r{i}/0", [rng.randrange(2, 199) for _ in range(length)], SamplingParams(new, **sampling))
        for i, (length, new) in enumerate([(1, 4), (18, 3)])
    ]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_greedy_tokens_equal_generate(family: str, tiny_model: Callable[[str], Path]) -> None:
    """In random order, composition and chunks, over scattered blocks."""
    jobs = Driver(make_engine(tiny_model(family), 8), random.Random(1)).run(make_jobs(temperature=0.0))
    assert [job.output for job in jobs] == generate(tiny_model(family), make_jobs(temperature=0.0))


def test_bits_depend_on_the_request_alone(tiny_model: Callable[[str], Path]) -> None:
    """As log probabilities, alone and in company, in chunks, with blocks of another size."""
    engine = make_engine(tiny_model("llama"), 16, batch_invariant=True)
    alone = [Driver(engine).run([job])[0] for job in make_jobs(seed=1, logprobs=3)]
    other = make_engine(tiny_model("llama"), 8, batch_invariant=True)
    again = Driver(other, random.Random(2)).run(make_jobs(seed=1, logprobs=3))
    assert [(job.output, job.logprobs) for job in again] == [(job.output, job.logprobs) for job in alone]
