"""Requests in process: their arrivals, their ends, and the counts of a run."""

from __future__ import annotations

import pytest

from load.in_process import Setup, run_in_process
from load.report import in_turn, quantile, spread
from load.trace import Request, Run
from load.workloads import any_prompt, ending
from services.engine.null import NullEngine
from services.messages import EngineFigures
from services.pool.limits import Limits
from services.scheduling import Knobs

BLOCK = 16


@pytest.fixture
def engine() -> NullEngine:
    return NullEngine(EngineFigures("m", 1024, 512, BLOCK, 50_000, "null"))


def run(
    engine: NullEngine, requests: list[Request], knobs: Knobs, limits: Limits | None = None, kv_blocks: int = 0
) -> Run:
    return run_in_process(engine, requests, Setup(knobs, limits or Limits(), kv_blocks))


def test_a_request_arrives_when_it_is_due_and_its_tokens_are_timed(engine: NullEngine) -> None:
    done = run(engine, [Request([5] * 8, 4), Request([5] * 8, 4, at=0.2)], Knobs(4))
    early, late = done.answers
    assert early.times[-1] < 0.2 <= late.arrived <= late.times[0]
    assert late.ttft == late.times[0] - late.arrived
    assert late.times == sorted(late.times)
    assert done.seconds == late.times[-1]
    assert done.tokens == 8
    assert len(late.gaps(late.times[0], late.times[-1])) == 3
    assert early.gaps(late.arrived, late.times[-1]) == []


def test_a_request_ends_with_the_stop_token_closest_to_a_length(engine: NullEngine) -> None:
    request = Request([5] * 8, 40)
    output = run(engine, [request], Knobs(1)).outputs[0]
    short = ending(request, output, 10)
    assert run(engine, [short], Knobs(1)).outputs == [output[:10]]
    assert ending(request, [7] * 40, 10).stop_token_ids == (7,)


def test_an_earlier_class_goes_first(engine: NullEngine) -> None:
    requests = [Request([5] * 8, 4, priority=1), Request([5] * 8, 4, priority=1), Request([5] * 8, 4, priority=-1)]
    for limits, first in ((Limits(), 0), (Limits(order="priority"), 2)):
        answers = run(engine, requests, Knobs(1), limits).answers
        assert min(range(3), key=lambda i: answers[i].times[0]) == first


def test_what_is_shared_wasted_and_recomputed_is_counted(engine: NullEngine) -> None:
    twice = [Request(any_prompt(4 * BLOCK, 0), 8)] * 2
    apart = run(engine, twice, Knobs(2))
    shared = run(engine, twice, Knobs(2, prefix_caching=True))
    assert (apart.hits, shared.hits) == (0, 3 * BLOCK)
    assert apart.recomputed == shared.recomputed == apart.wasted == 0

    outputs = run(engine, [Request([5] * 8, 9)] * 2, Knobs(2)).outputs
    requests = [ending(Request([5] * 8, 9), output, 4) for output in outputs]
    assert run(engine, requests, Knobs(2)).wasted == 0
    ahead = run(engine, requests, Knobs(2, lookahead=1))
    assert 0 <= ahead.wasted <= len(requests)  # none if both results of a pair of iterations return together
    assert (ahead.outputs, ahead.recomputed) == ([output[:4] for output in outputs], 0)

    long = [Request(any_prompt(8, seed), 40) for seed in range(4)]
    pressed = run(engine, long, Knobs(4, admission="on_demand"), kv_blocks=6)
    assert pressed.preemptions > 0
    assert pressed.recomputed > 0
    assert pressed.outputs == run(engine, long, Knobs(4), kv_blocks=6).outputs
    assert pressed.mean_batch_size > 1


def test_variants_run_in_turn() -> None:
    calls: list[str] = []
    done = in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "a", "b"]
    assert {name: len(runs) for name, runs in done.items()} == {"a": 2, "b": 2}
    assert spread([3.0, 1.0, 2.0]) == "2.0 (1.0 to 3.0)"
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
