"""An engine on the weights and the KV cache that another one has left in shared memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.engine.startup.shared_memory import SharedMemory
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=16, threads=1)
PROMPT = list(range(5, 16))  # two full blocks and three tokens


def new(computed: int = 0) -> NewRequest:
    return NewRequest("a/0", PROMPT, len(PROMPT), SamplingParams(8, temperature=0.0), computed)


@pytest.mark.parametrize("change", [{}, {"dtype": "bfloat16"}, {"weights": "int8"}])
def test_full_blocks_and_weights_are_found_and_others_are_erased(
    change: dict[str, object], tiny_model: Callable[[str], Path]
) -> None:
    settings = dataclasses.replace(SETTINGS, **change)
    first, second = SharedMemory("build"), SharedMemory("build")
    old = Engine.load(tiny_model("llama"), settings, memory=first)
    second.hold(first.path)
    old.reset("1:a")
    expected = old.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]})).tokens
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x", 1: b"y"}))
    old._cache.values[0][2] = torch.nan  # as a request may leave it that has failed
    first.release()
    del old
    engine = Engine.load(tiny_model("llama"), settings, memory=second)
    assert engine.block_names == {0: b"x", 1: b"y"}
    engine.reset("2:b")
    again = Iteration("2:b", 1, {"a/0": 3}, [new(8)], {"a/0": [0, 1, 2]})
    assert engine.run(again).tokens == expected
    assert not engine._cache.values[0][2].isnan().any()


@pytest.mark.parametrize("other", ["build", "settings", "model", "unfinished"])
def test_nothing_of_others_is_used(other: str, tiny_model: Callable[[str], Path]) -> None:
    first, second = SharedMemory("build"), SharedMemory("other" if other == "build" else "build")
    old = Engine.load(tiny_model("llama"), SETTINGS, memory=first)
    old.reset("1:a")
    old.run(Iteration("1:a", 1, {"a/0": 11}, [new()], {"a/0": [0, 1, 2]}))
    old.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x"}))
    if other == "unfinished":
        with Path(first.path).open("r+b") as header:
            header.write(bytes(32))
    second.hold(first.path)
    settings = dataclasses.replace(SETTINGS, kv_blocks=8) if other == "settings" else SETTINGS
    engine = Engine.load(tiny_model("gpt2" if other == "model" else "llama"), settings, memory=second)
    assert engine.block_names == {}
    assert engine.figures.num_blocks == settings.kv_blocks


def test_a_process_that_has_just_ended_leaves_nothing() -> None:
    memory = SharedMemory("build")
    memory.hold("/proc/self/fd/100000")
    assert memory.path == ""
    assert memory.restore("any") is None
