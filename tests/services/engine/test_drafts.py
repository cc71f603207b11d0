"""Drafts change no token, no log probability and no failure, whatever the settings of their requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver import Driver, Job
from letters import letters
from marked import full
from mixed_requests import MIX
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

VOCAB = 201
SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=160, threads=1)
ENGINES: dict[str, tuple[str, dict[str, Any], EngineSettings]] = {
    "float32": ("llama", {}, SETTINGS),
    "bfloat16": ("qwen3", {}, replace(SETTINGS, dtype="bfloat16")),
    "int8": ("qwen3", {}, replace(SETTINGS, dtype="bfloat16", weights="int8", kv_cache_dtype="int8_per_token_head")),
    "window": ("gemma3_text", {"sliding_window": 9}, SETTINGS),
    "experts": ("qwen3_moe", {"num_experts": 12, "num_experts_per_tok": 3}, SETTINGS),
}
KINDS = [*MIX, {"grammar": "start: /[a-z]{2,40}[a-f]*/"}, {"grammar": 'start: ("ab" | /[k-p]{1,3}/ "zz")*'}]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    family, config, settings = ENGINES[request.param]
    folder: Path = make_tiny_model(tmp_path_factory.mktemp(family), family, VOCAB, with_tokenizer=False, **config)
    engine = Engine.load(folder, settings)
    engine.sampler._grammars = letters(VOCAB)
    return engine


def jobs() -> list[Job]:
    """Requests of all kinds, one with a grammar that does not compile."""
    drawn = random.Random(5)
    kinds = [*KINDS, {"grammar": "start: ("}]
    return [
        Job(
            str(i),
            [drawn.randrange(VOCAB) for _ in range(drawn.randint(3, 30))],
            SamplingParams(**{"max_new_tokens": 12, "seed": i, "logprobs": 1, **kind}),
        )
        for i, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("share", [0.6, *full([0.0, 1.0])])
def test_drafts_change_nothing(engine: Engine, share: float) -> None:
    assert engine.figures.verifies_drafts
    alone = {job.id: Driver(engine).run([job])[0] for job in jobs()}
    drawn = random.Random(share)
    iterations = 0

    def drafts(job: Job) -> list[int]:
        """Guesses of which a share is right."""
        nonlocal iterations
        iterations += 1
        rest = alone[job.id].output[len(job.output) :]
        return [token if drawn.random() < share else drawn.randrange(VOCAB) for token in rest[: drawn.randint(0, 6)]]

    together = jobs()
    Driver(engine, random.Random(2), max_batch=5, drafts=drafts).run_interrupted(together, 0.1)
    for job in together:
        one = alone[job.id]
        assert (job.output, job.logprobs, job.failed) == (one.output, one.logprobs, one.failed)
    if share == 1.0:
        assert iterations < sum(len(job.output) for job in together) / 2


def test_the_stock_path_verifies_none(tiny_model: Callable[[str], Path]) -> None:
    engine = Engine.load(tiny_model("lfm2"), SETTINGS)
    assert not engine.figures.verifies_drafts


def test_tokens_that_a_grammar_forces_are_named(engine: Engine) -> None:
    sampling = SamplingParams(12, grammar='start: ("abc" | "xyz") "defgh"')
    job = Job("forced", [1, 2, 3], sampling)
    named: list[int] = []
    driver = Driver(engine, drafts=lambda _: named)
    while not job.done and len(job.output) < 8:
        named = driver.iterate([job]).forced.get(job.id, [])
    assert driver.step < 5  # of 8 without drafts
