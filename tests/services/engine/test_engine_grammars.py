"""Tokens with a grammar depend on the request alone: not on company, chunks, or a preemption."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from driver import Driver, Job
from letters import letters

from services.engine import engine as engine_module
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.requests import SamplingParams

GRAMMARS = ["start: /[a-z]{2,40}[a-f]*/", "", 'start: ("ab" | /[k-p]{1,3}/ "zz")*', "start: (", "start: /[a-c]{12}/"]


@pytest.fixture
def engine(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(llama.sampler, "_grammars", letters(llama.figures.vocab_size))
    return llama


def jobs(count: int) -> list[Job]:
    return [
        Job(
            str(i),
            list(range(10 + i, 25 + 2 * i)),
            SamplingParams(8, seed=i, temperature=(1.0, 0.0)[i // 5 % 2], grammar=GRAMMARS[i % 5], logprobs=1),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_the_same_alone_and_in_company(engine: Engine, seed: int) -> None:
    alone = jobs(10)
    for job in alone:
        Driver(engine).run([job])
    together = jobs(10)
    Driver(engine, random.Random(seed)).run_interrupted(together, 0.1)
    for one, other in zip(alone, together, strict=True):
        assert one.output == other.output
        assert one.failed == other.failed
        assert one.logprobs == other.logprobs
    assert [job.failed is not None for job in together] == [i % 5 == 3 for i in range(10)]


@pytest.mark.parametrize("library", ["llguidance", "tokenizers"])
def test_numerics_name_the_libraries_of_masks(llama: Engine, library: str) -> None:
    assert f"{library}-{version(library)}" in llama.figures.numerics.split()


def test_an_engine_loads_without_the_library_of_masks(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported when the first request with a grammar comes."""

    def absent(package: str) -> str:
        if package == "llguidance":
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(engine_module, "version", absent)
    settings = EngineSettings("cpu", "float32", block_size=4, kv_blocks=8, threads=1)
    numerics = Engine.load(tiny_model("llama"), settings).figures.numerics
    assert "llguidance-none" in numerics.split()
