"""bfloat16 on a CPU is near float32's log probabilities, on any processor and with any block size."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from driver import Driver, Job
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

VOCAB = 201
LENGTHS = (1, 2, 15, 16, 17, 40, 100, 255, 256, 257, 300)  # about the sizes of blocks and of tiles of keys
SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=200, threads=2)


@pytest.fixture(scope="module", params=[(4, 2, 64), (6, 2, 32), (2, 2, 96)], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of so many heads, heads of keys, and numbers of each."""
    heads, keys, dim = request.param
    shape = {"num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": dim, "max_position_embeddings": 320}
    return make_tiny_model(tmp_path_factory.mktemp("model"), "mistral", VOCAB, with_tokenizer=False, **shape)


@pytest.fixture(scope="module")
def exact(folder: Path) -> list[dict[int, float]]:
    return logprobs(Engine.load(folder, SETTINGS))


@pytest.fixture(scope="module")
def stock(folder: Path, exact: list[dict[int, float]]) -> float:
    """The error of transformers' own layers in bfloat16."""
    return deviation(logprobs(Engine.load(folder, replace(SETTINGS, dtype="bfloat16", fast_path=False))), exact)


@pytest.mark.parametrize("block_size", [16, 32, 5])
def test_it_is_no_further_off_than_transformers(
    folder: Path, exact: list[dict[int, float]], stock: float, block_size: int
) -> None:
    settings = replace(SETTINGS, dtype="bfloat16", block_size=block_size, kv_blocks=400)
    short = deviation(logprobs(Engine.load(folder, settings)), exact)
    assert 0 < short < stock


def deviation(some: list[dict[int, float]], others: list[dict[int, float]]) -> float:
    """The mean of all."""
    return statistics.fmean(abs(one[id] - other[id]) for one, other in zip(some, others, strict=True) for id in one)


def logprobs(engine: Engine) -> list[dict[int, float]]:
    """The log probabilities of all tokens after each of some prompts, computed in one batch."""
    rng = random.Random(3)
    jobs = [
        Job(
            f"r{i}/0", [rng.randrange(VOCAB) for _ in range(length)], SamplingParams(1, temperature=0.0, logprobs=VOCAB)
        )
        for i, length in enumerate(LENGTHS)
    ]
    done = Driver(engine, max_batch=len(jobs)).run(jobs)
    return [dict(job.logprobs[0].top) for job in done]
