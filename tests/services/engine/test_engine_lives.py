"""An engine whose owners die again and again computes the same bits as a quiet one; a difference is detected."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_lives import Findings, disturb, draw_requests, learn
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.messages import Iteration, IterationResult
from services.started import Started

VOCAB = 201
SETTINGS = EngineSettings("cpu", "float32", kv_blocks=40, threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", VOCAB, with_tokenizer=False)


def engines(folder: Path, **changes: Any) -> list[Engine]:
    settings = replace(SETTINGS, **changes)
    return [Engine.load(folder, replace(settings, threads=threads)) for threads in (1, 2)]


def run_lives(engines: Sequence[Any], deaths: int, length: int = 100) -> Findings:
    draw = random.Random(1)
    checked = draw_requests(20, length, length // 4, VOCAB, draw)
    learn(engines[0], checked)
    return disturb(engines[1:], checked, SETTINGS.kv_blocks, deaths, draw)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_do_not_depend_on_who_died_meanwhile(folder: Path, dtype: str, ahead: bool) -> None:
    """`ahead`: with the sampler of devices, iterations are launched before the result of the one before is read."""
    one, two = engines(folder, dtype=dtype)
    if ahead:
        one.sampler.search = two.sampler.search = None
    found = run_lives([one, one, two], deaths=8)
    assert found.wrong == []
    assert found.recomputed
    assert found.answers
    assert found.right


class Faulty:
    """An engine of which one result in a hundred that has log probabilities has one wrong bit in each."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._runs = engine, 0
        self.figures, self.reset = engine.figures, engine.reset

    def start(self, iteration: Iteration) -> Started[IterationResult]:
        return self._engine.start(iteration).then(self._spoil)

    def _spoil(self, result: IterationResult) -> IterationResult:
        self._runs += bool(result.logprobs)
        if result.logprobs and self._runs % 100 == 0:
            result.logprobs.update(
                {id: replace(said, token=said.token * (1 + 2**-23)) for id, said in result.logprobs.items()}
            )
        return result


def test_a_single_wrong_bit_is_detected(folder: Path) -> None:
    one, two = engines(folder)
    assert run_lives([one, Faulty(two)], deaths=40).wrong  # some results are lost with their owner


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_thousands_of_deaths(folder: Path, dtype: str) -> None:
    one, two = engines(folder, dtype=dtype)
    found = run_lives([one, one, two], deaths=2000, length=200)
    assert found.wrong == []
