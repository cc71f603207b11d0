"""The warm-up leaves no trace, and tells how long an iteration may take."""

from __future__ import annotations

from typing import ClassVar

from services.engine.engine import Engine
from services.engine.null import NullEngine
from services.engine.warm_up import TOKENS, WarmUp, iteration
from services.iteration_cost import COLD_SECONDS, IterationCost
from services.messages import EngineFigures, Iteration, IterationResult
from services.requests import SamplingParams
from tests.services.engine.driver import Driver, Job


def test_an_engine_is_measured_and_knows_nobody_afterwards(llama: Engine) -> None:
    one, seconds = WarmUp(llama, llama.figures.block_size)("e")
    assert seconds > 0
    assert len(llama._rows) == 0
    cost = IterationCost()
    cost.finished(one, seconds)
    assert cost.estimate(Iteration("e", 1, {"a": TOKENS})) < COLD_SECONDS
    job = Job("a/0", [5, 6, 7], SamplingParams(2, temperature=0.0))
    assert Driver(llama).run([job])[0].failed is None


def test_the_deadly_token_is_not_in_it() -> None:
    for deadly in (-1, 0, 1):
        assert deadly not in iteration("e", 16, deadly).new[0].token_ids


def test_a_null_engine_takes_it_too() -> None:
    engine = NullEngine(EngineFigures("m", 100, 10, 4, 100, "null"))
    one, seconds = WarmUp(engine, 4)("e")
    assert (one.epoch, seconds >= 0) == ("e", True)


def test_the_next_owner_of_a_warm_engine_waits_for_one_iteration() -> None:
    class Counting(NullEngine):
        epochs: ClassVar[list[str]] = []

        def run(self, iteration: Iteration) -> IterationResult:
            self.epochs.append(iteration.epoch)
            return super().run(iteration)

    warm_up = WarmUp(Counting(EngineFigures("m", 100, 10, 4, 100, "null")), 4)
    for epoch in ("1:a", "2:b", "3:c"):
        warm_up(epoch)
    assert Counting.epochs == ["1:a", "1:a", "2:b", "3:c"]
