"""Requests in process: their arrivals, their ends, and an engine that is lost."""

from __future__ import annotations

import pytest

from load.in_process import Setup, run_in_process
from load.report import quantile
from load.trace import Request
from load.workloads import paper
from services.engine.null import NullEngine
from services.errors import EngineLost
from services.messages import EngineFigures, Iteration, IterationResult
from services.scheduling import Knobs, RequestLevelScheduler


@pytest.fixture
def engine() -> NullEngine:
    return NullEngine(EngineFigures("m", 1024, 512, 16, 50_000, "null"))


class LostEngine(NullEngine):
    def run(self, iteration: Iteration) -> IterationResult:
        raise EngineLost(f"in iteration {iteration.step}")


def test_a_request_arrives_when_it_is_due_and_its_tokens_are_timed(engine: NullEngine) -> None:
    done = run_in_process(engine, [Request([5] * 8, 4), Request([5] * 8, 4, at=0.2)], Setup(Knobs(4)))
    early, late = done.answers
    assert early.times[-1] < 0.2 <= late.arrived <= late.times[0]
    assert late.ttft == late.times[0] - late.arrived
    assert late.times == sorted(late.times)
    assert done.seconds == late.times[-1]
    assert done.tokens == 8
    assert len(late.gaps(late.times[0], late.times[-1])) == 3
    assert early.gaps(late.arrived, late.times[-1]) == []


def test_both_policies_give_each_request_its_tokens(engine: NullEngine) -> None:
    requests = paper(12)
    by_iteration = run_in_process(engine, requests, Setup(Knobs(4)))
    by_request = run_in_process(engine, requests, Setup(Knobs(4), RequestLevelScheduler))
    assert [len(output) for output in by_iteration.outputs] == [request.max_new_tokens for request in requests]
    assert by_iteration.outputs == by_request.outputs


def test_an_engine_that_is_lost_ends_the_run(engine: NullEngine) -> None:
    with pytest.raises(EngineLost, match="in iteration 1"):
        run_in_process(LostEngine(engine.figures), paper(2), Setup(Knobs(4)))


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
