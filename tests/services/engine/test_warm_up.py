"""The warm-up leaves no trace, and tells how long an iteration may take."""

from __future__ import annotations

from services.engine.engine import Engine
from services.engine.null import NullEngine
from services.engine.warm_up import TOKENS, iteration, warm_up
from services.iteration_cost import COLD_SECONDS, IterationCost
from services.messages import EngineFigures, Iteration
from services.requests import SamplingParams
from tests.services.engine.driver import Driver, Job


def test_an_engine_is_measured_and_knows_nobody_afterwards(llama: Engine) -> None:
    one = iteration("e", llama.figures.block_size)
    seconds = warm_up(llama, one)
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
    assert warm_up(engine, iteration("e", 4)) >= 0
