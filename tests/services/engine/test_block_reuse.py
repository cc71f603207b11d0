"""What the next owner of an engine finds: full blocks with the names of their contents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver
from owners import Owners
from safetensors.torch import load_file, save_file
from test_engine import seeded_jobs
from tiny_families import make_tiny_family
from tiny_models import make_tiny_model

from services.engine.engine import Engine
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.engine.warm_up import WarmUp
from services.messages import Claim, EngineFigures, Iteration, NewRequest
from services.requests import SamplingParams

SETTINGS = EngineSettings("cpu", "float32", block_size=4, kv_blocks=16, threads=1)
GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0)
PROMPT = list(range(5, 16))  # two full blocks and three tokens


def new(id: str, tokens: list[int], computed: int = 0) -> NewRequest:
    return NewRequest(id, tokens, len(tokens), GREEDY, computed)


@pytest.fixture(params=["null", "native", "sdpa", "gpt_oss", "qwen3_5_text"])
def engine(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path: Path) -> Any:
    if request.param == "null":
        return NullEngine(EngineFigures("null", 256, 16, 4, 200, "null"))
    if request.param == "qwen3_5_text":
        return Engine.load(make_tiny_family(tmp_path, "qwen3_5_text"), SETTINGS)
    if request.param == "gpt_oss":
        return Engine.load(tiny_model("gpt_oss"), SETTINGS)
    return Engine.load(tiny_model("llama"), dataclasses.replace(SETTINGS, fast_path=request.param == "native"))


def test_named_blocks_are_as_good_for_the_next_owner_as_computed_ones(engine: Any) -> None:
    """The warm-up on attaching does not write to them. Blocks are placed where the warm-up would be most likely to."""
    engine.reset("1:a")
    first = engine.run(Iteration("1:a", 1, {"a/0": 11}, [new("a/0", PROMPT)], {"a/0": [0, 1, 2]}))
    engine.run(Iteration("1:a", 2, {"a/0": 1}, full_blocks={0: b"x", 1: b"y"}))
    assert engine.block_names == {0: b"x", 1: b"y"}
    bits = [WarmUp(engine)(epoch).bits for epoch in ("2:b", "3:c")]
    assert bits[0] == bits[1]
    assert engine.block_names == {0: b"x", 1: b"y"}
    again = Iteration("3:c", 1, {"a/0": 3}, [new("a/0", PROMPT, 8)], {"a/0": [0, 1, 7]})
    assert engine.run(again).tokens == first.tokens
    engine.run(Iteration("3:c", 2, {"b/0": 4}, [new("b/0", [9] * 4)], {"b/0": [1]}, released=["a/0"]))
    assert engine.block_names == {0: b"x"}


def test_the_padding_block_stays_zero(tiny_model: Callable[[str], Path]) -> None:
    engine = Engine.load(tiny_model("llama"), SETTINGS)
    WarmUp(engine)("1:a")
    cache = engine._cache
    assert set(engine.warm_up_blocks).isdisjoint({*range(16), cache.padding_block})
    assert all(not store[: cache.padding_block + 1].any() for store in (*cache.keys, *cache.values))


def test_a_failed_request_leaves_names_only_to_blocks_that_it_shares(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=64, with_tokenizer=False)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][40] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    engine = Engine.load(folder, SETTINGS)
    engine.reset("e")
    engine.run(Iteration("e", 1, {"a/0": 11}, [new("a/0", PROMPT)], {"a/0": [0, 1, 2]}))
    bad = [*PROMPT[:8], 6, 6, 6, 40, 6]
    named = {0: b"x", 1: b"y"}
    engine.run(Iteration("e", 2, {"b/0": 4}, [new("b/0", bad, 8)], {"b/0": [0, 1, 3, 4]}, full_blocks=named))
    result = engine.run(Iteration("e", 3, {"b/0": 1}, full_blocks={3: b"v"}))
    assert list(result.failed) == ["b/0"]
    engine.run(Iteration("e", 4, {}, full_blocks={4: b"w"}))  # sent before the failure was known
    assert engine.block_names == named
    engine.run(Iteration("e", 5, {}, released=["b/0"]))
    engine.reset("f")
    assert engine.block_names == named


@pytest.mark.parametrize("family", ["llama", "qwen3_5_text", "lfm2"])
def test_each_owner_continues_with_the_blocks_of_the_one_before(family: str, tmp_path: Path) -> None:
    """Owners die at any point of a block; each computes at most one block of a request again."""
    engine = Engine.load(make_tiny_family(tmp_path, family), dataclasses.replace(SETTINGS, kv_blocks=100))
    expected = [Driver(engine).run([job])[0].output for job in seeded_jobs()]
    claims = [Claim(job.id, float(i), job.prompt, [], job.sampling) for i, job in enumerate(seeded_jobs())]
    owners = Owners(engine, lambda: engine.block_names, claims)
    WarmUp(engine)("0:a")
    for epoch, iterations in enumerate([3, 4, 2, 3, 20], 1):
        owners.own(f"{epoch}:a", iterations)
    assert [owners.outputs[claim.id] for claim in claims] == expected
    assert len(owners.recomputed) == 5
    assert max(max(again.values()) for again in owners.recomputed[1:]) <= 4
