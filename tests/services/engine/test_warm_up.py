"""The warm-up leaves no trace, and measures how long an iteration may take."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import ClassVar

import pytest
from driver import Driver, Job
from safetensors.torch import load_file, save_file

from services.engine.engine import Engine
from services.engine.null import NullEngine
from services.engine.settings import WARM_UP_TOKENS, EngineSettings
from services.engine.warm_up import WarmUp, iteration
from services.loop.iteration_cost import COLD_SECONDS, IterationCost
from services.messages import EngineFigures, Iteration, IterationResult
from services.requests import SamplingParams

FLOAT32 = EngineSettings(device="cpu", dtype="float32", block_size=4, kv_blocks=256, threads=1)


def test_an_engine_is_measured_and_knows_no_request_afterwards(llama: Engine) -> None:
    warmth = WarmUp(llama)("e")
    assert warmth.seconds > 0
    assert len(llama._requests) == 0
    cost = IterationCost()
    cost.finished(warmth.iteration, warmth.seconds)
    assert cost.estimate(Iteration("e", 1, {"a": WARM_UP_TOKENS})) < COLD_SECONDS
    job = Job("a/0", [5, 6, 7], SamplingParams(2, temperature=0.0))
    assert Driver(llama).run([job])[0].failed is None


def test_it_draws_so_that_the_sampler_is_compiled() -> None:
    sampling = iteration("e", [0]).new[0].sampling
    assert sampling.temperature > 0
    assert sampling.top_k
    assert sampling.top_p < 1
    assert sampling.logprobs


def test_the_deadly_token_is_not_in_it() -> None:
    for deadly in (-1, 0, 1):
        assert deadly not in iteration("e", [0], deadly).new[0].token_ids


def test_a_null_engine_takes_it_too() -> None:
    engine = NullEngine(EngineFigures("m", 100, 10, 4, 100, "null"))
    warmth = WarmUp(engine)("e")
    assert (warmth.iteration.epoch, warmth.seconds >= 0) == ("e", True)


def test_no_owner_of_a_warm_engine_waits_for_an_iteration() -> None:
    class Counting(NullEngine):
        epochs: ClassVar[list[str]] = []

        def reset(self, epoch: str) -> None:
            super().reset(epoch)
            self.epochs.append(epoch)

        def run(self, iteration: Iteration) -> IterationResult:
            self.epochs.append("run")
            return super().run(iteration)

    warm_up = WarmUp(Counting(EngineFigures("m", 100, 10, 4, 100, "null")))
    measured = [warm_up(epoch) for epoch in ("1:a", "2:b", "3:c")]
    assert Counting.epochs.count("run") == 2
    assert Counting.epochs[-3:] == ["1:a", "2:b", "3:c"]
    assert [warmth.iteration.epoch for warmth in measured] == ["1:a", "2:b", "3:c"]
    assert len({(warmth.seconds, warmth.bits) for warmth in measured}) == 1


def test_an_engine_is_as_fast_as_its_least_busy_process_was() -> None:
    engine = NullEngine(EngineFigures("m", 100, 10, 4, 100, "null"))
    assert WarmUp(engine).seconds == inf
    assert WarmUp(engine, seconds=0.0)("e").seconds == 0.0


def test_its_bits_are_those_of_the_model_on_any_engine(tiny_model: Callable[[str], Path], llama: Engine) -> None:
    other = Engine.load(tiny_model("llama"), replace(FLOAT32, block_size=16, kv_blocks=8, threads=2))
    bits = {WarmUp(engine)("e").bits for engine in (llama, other, other)}
    assert len(bits) == 1


PARTS = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "norm")


@pytest.mark.parametrize("part", PARTS)
def test_one_wrong_weight_shows(part: str, tiny_model: Callable[[str], Path], llama: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    name = [name for name in tensors if name.endswith(f"{part}.weight")][-1]
    tensors[name].view(-1)[7] += 0.05
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    wrong = Engine.load(folder, FLOAT32)
    assert WarmUp(wrong)("e").bits != WarmUp(llama)("e").bits
