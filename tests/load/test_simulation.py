"""The simulator: costs by hand, exact times of the real loop on virtual time, and its parts, the same twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.pool_client.event_reader import PAUSE
from load.curves import Curve, Point, sweep
from load.in_process import LocalPool, Served, Setup
from load.recording import BATCH, SCHEDULERS, example, file_of
from load.simulation import __main__ as simulate
from load.simulation import paper, plan
from load.simulation.cost import TABLE_1, IterationTime, Partition, PerToken
from load.simulation.engine import Cost, VirtualEngine
from load.simulation.faster_transformer import batch_seconds, largest_batch, serve
from load.simulation.headline import crossing
from load.simulation.pool import Price, Reads, Users
from load.simulation.specs import A100_40GB, MAX_MODEL_LEN, Gpu, Model, RingProtocol
from load.simulation.world import figures_of, run_simulated
from load.trace import Answer, Request
from load.workloads import paper_lengths, poisson, sized
from services.loop.clock import run_in_virtual_time
from services.messages import Commit, Exchange, Iteration, NewRequest, Room
from services.requests import SamplingParams
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler


class Seconds:
    """A cost that is the same for all iterations; records what was computed."""

    def __init__(self, *stages: float, hand_over: float = 0.0) -> None:
        self.time, self.computed = IterationTime(stages or (1.0,), hand_over), list[tuple[Any, int]]()

    def iteration(self, rows: Any, sampled: int) -> IterationTime:
        self.computed.append((list(rows), sampled))
        return self.time


# --- costs ---

ALL = ((0.0, 1.0),)  # every read reaches the peak
# 1 byte/s, 1 operation/s: seconds are bytes, or operations
UNIT = Gpu("unit", memory=1e6, bandwidth=1.0, rate=1.0, rings=(RingProtocol(7.0, 1.0, 2.0),), adapter=1.0, reads=ALL)
MULTIPLIES, READS = (Gpu("fast", 1e6, *rates, (), 1.0, ALL) for rates in ((1.0, 1e30), (1e30, 1.0)))
TINY, LINEAR, HEAD = Model("tiny", 4, 2), 12 * 2**2, 50_257 * 2


def test_one_token_reads_every_weight_and_many_are_bound_by_products() -> None:
    time = Partition(TINY, MULTIPLIES, ranks=1).iteration([(5, 1)], sampled=1)
    weights, keys_and_values = 2 * LINEAR * 4, 2 * 2 * 2 * 4 * (5 + 1)
    assert time.stages == pytest.approx((weights + keys_and_values + 2 * HEAD,))
    time = Partition(TINY, READS, ranks=1).iteration([(5, 3), (0, 2)], sampled=0)
    pairs = (3 * 5 + 3 + 2 + 1) + (2 + 1)  # each token with all before it and itself
    assert time.stages == pytest.approx((2 * (LINEAR * 4) * 5 + 4 * 2 * 4 * pairs,))


def test_ranks_and_stages_share_the_work() -> None:
    alone = Partition(TINY, UNIT, ranks=1).iteration([(0, 4)], 0).total
    shared = Partition(TINY, UNIT, ranks=4).iteration([(0, 4)], 0).total
    all_reduce = 7.0 + 6 * (1.0 + 2 * 2 * 4 / 4 / 2.0)
    assert shared == pytest.approx(alone / 4 + 2 * 4 * all_reduce)
    split = Partition(TINY, UNIT, ranks=1, stages=2).iteration([(0, 4)], 1)
    assert split.stages == pytest.approx((alone / 2, alone / 2 + 2 * HEAD))
    assert split.total == pytest.approx(alone + 2 * HEAD + split.hand_over)


def test_the_models_of_table_1_have_their_sizes_and_what_memory_leaves() -> None:
    sizes = {name: f"{round(one.model.params / 1e9)}B" for name, one in TABLE_1.items()}
    assert sizes == {name: name for name in TABLE_1}
    assert A100_40GB.all_reduce(1e4, 8) == pytest.approx(6.6e-6 + 14 * (0.6e-6 + 1e4 / 8 / 87.7e9))
    gpu = Gpu("small", memory=200_000.0, bandwidth=1.0, rate=1.0, rings=(), adapter=1.0, reads=ALL)
    assert Partition(TINY, gpu, ranks=2).num_slots == (400_000 - 2 * (4 * LINEAR + HEAD)) // (2 * 2 * 2 * 4)
    # section 6.1: batches of 8 on 13B and of 16 on 101B did not fit; figure 9 has half of each
    for model, too_many in (("13B", 8), ("101B", 16)):
        assert too_many // 2 <= largest_batch(TABLE_1[model]) < too_many


# --- the engine ---


def new(id: str, tokens: int) -> NewRequest:
    return NewRequest(id, [5] * tokens, tokens, SamplingParams(16))


def test_a_token_comes_with_the_last_of_what_is_known() -> None:
    cost = Seconds()

    async def main() -> list[set[str]]:
        engine = VirtualEngine(cost)
        iterations = (
            Iteration("e", 1, {"a": 4, "b": 3}, [new("a", 6), new("b", 3)]),
            Iteration("e", 2, {"a": 2, "b": 1}),
            Iteration("e", 3, {"a": 1, "b": 1}, [new("b", 1)], released=["b"]),
        )
        return [set((await engine.start(iteration)).tokens) for iteration in iterations]

    assert run_in_virtual_time(main()) == [{"b"}, {"a", "b"}, {"a", "b"}]
    assert cost.computed == [([(0, 4), (0, 3)], 1), ([(4, 2), (3, 1)], 2), ([(6, 1), (0, 1)], 2)]


@pytest.mark.parametrize(
    ("cost", "starts", "ends"),
    [
        (Seconds(2.0), [0.0, 0.5, 10.0], [2.0, 4.0, 12.0]),
        (Seconds(2.0, 2.0), [0.0, 0.0, 0.0], [4.0, 6.0, 8.0]),
        (Seconds(1.0, 3.0, 1.0), [0.0, 0.0, 0.0], [5.0, 8.0, 11.0]),
        (Seconds(2.0, 2.0, hand_over=0.5), [0.0, 0.0], [4.5, 6.5]),
    ],
)
def test_stages_are_at_different_iterations_at_once(cost: Seconds, starts: list[float], ends: list[float]) -> None:
    async def one(engine: VirtualEngine, step: int, at: float) -> float:
        await asyncio.sleep(at)
        await engine.start(Iteration("e", step, {f"{step}": 1}, [new(f"{step}", 1)]))
        return asyncio.get_running_loop().time()

    async def main() -> list[float]:
        engine = VirtualEngine(cost)
        return await asyncio.gather(*(one(engine, step, at) for step, at in enumerate(starts)))

    assert run_in_virtual_time(main()) == ends


# --- the loop and the scheduler ---


def times(
    sizes: list[Request],
    batch: int,
    kind: type[Scheduler] = Scheduler,
    stages: int = 1,
    slots: int = 1024,
    **knobs: Any,
) -> list[list[float]]:
    setup = Setup(Knobs(batch, **knobs), kind)
    return [
        one.times for one in run_simulated(sizes, Seconds(*[1.0] * stages), figures_of(slots, min(slots, 1024)), setup)
    ]


def test_requests_join_and_leave_at_any_iteration() -> None:
    assert times([sized(4, 2), sized(4, 4), sized(4, 1)], 2) == [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [3.0]]
    later = times([sized(4, 4), Request([5] * 4, 1, at=1.5)], 8)
    assert later == [[1.0, 2.0, 3.0, 4.0], [pytest.approx(4.0)]]


def test_a_batch_is_fixed_under_request_level_scheduling() -> None:
    sizes = [sized(4, 1), sized(4, 3), sized(4, 2)]
    assert times(sizes, 2, RequestLevelScheduler) == [[1.0], [1.0, 2.0, 3.0], [4.0, 5.0]]


def test_as_many_batches_as_stages_keep_all_stages_busy() -> None:
    """The paper's figure 8a."""
    two = [sized(4, 3)] * 2
    assert times(two, 1, stages=2, batches_in_flight=2) == [[2.0, 4.0, 6.0], [3.0, 5.0, 7.0]]
    assert times(two, 1, stages=2, batches_in_flight=1) == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_a_budget_cuts_prompts_into_chunks_and_memory_bounds_the_batch() -> None:
    # 4 tokens of the first; then one of it and 3 of the second, twice; then the last one
    assert times([sized(4, 4), sized(7, 1)], 2, token_budget=4) == [[1.0, 2.0, 3.0, 4.0], [4.0]]
    assert [one[0] for one in times([sized(16, 16)] * 2, 8, slots=48)] == [1.0, 17.0]


def test_as_many_tokens_of_a_draft_count_as_are_right() -> None:
    cost = Seconds(1.0)

    async def serve() -> tuple[Any, Any]:
        engine = VirtualEngine(cost, accepted=1.0)
        first = await engine.start(Iteration("e", 1, {"a": 4}, [NewRequest("a", [7] * 4, 4, SamplingParams(9))]))
        second = await engine.start(Iteration("e", 2, {"a": 1}, drafts={"a": [7, 7]}))
        await engine.start(Iteration("e", 3, {"a": 1}))
        return first, second

    first, second = run_in_virtual_time(serve())
    assert (first.more, second.num_tokens) == ({}, 3)
    assert cost.computed == [([(0, 4)], 1), ([(4, 3)], 3), ([(7, 1)], 1)]


def gains(cost: Cost, streams: int) -> list[float]:
    """How many times as many tokens per second drafts give, where 0, 50, 90 and 100% of the guesses are right."""

    def seconds(most: int, accepted: float) -> float:
        figures = figures_of(streams * MAX_MODEL_LEN, MAX_MODEL_LEN)
        setup, requests = Setup(Knobs(streams, num_speculative_tokens=most)), [sized(128, 256)] * streams
        answers = run_simulated(requests, cost, figures, setup, accepted=accepted)
        return max(answer.times[-1] for answer in answers)

    return [seconds(0, 0.0) / seconds(16, share) for share in (0.0, 0.5, 0.9, 1.0)]


def test_drafts_gain_most_for_a_lone_stream_and_cost_little_where_they_are_wrong() -> None:
    lone, several = (gains(TABLE_1["13B"], streams) for streams in (1, 8))
    assert min(lone[0], several[0]) > 0.97
    assert lone[2] > 3.0
    assert all(before < after for gains in (lone, several) for before, after in pairwise(gains))
    assert all(one > other for one, other in zip(lone[1:], several[1:], strict=True))


def test_drafts_of_a_batch_in_which_tokens_cost_much_are_tried_and_kept_where_they_gain() -> None:
    several, many = (gains(PerToken(0.0075, 0.00125), streams) for streams in (8, 32))  # a small model on two cores
    assert min(several + many) > 0.97
    assert several[2] > 1.05
    assert several[3] > 1.25


def test_a_user_asks_again_when_answered() -> None:
    async def main() -> list[tuple[float, float]]:
        pool, sizes = LocalPool(), iter([sized(4, 2), sized(4, 1), sized(4, 9)])
        served = Served(pool, [VirtualEngine(Seconds())], figures_of(1024, 512), Setup(Knobs(8)))
        async with served, Users(pool, 1, lambda: next(sizes)):
            await asyncio.sleep(3.5)
        return [(one.arrived, one.times[0]) for one in pool.answers]

    assert run_in_virtual_time(main()) == [(0.0, 1.0), (2.0, 3.0), (3.0, 4.0)]


def test_the_same_run_gives_the_same_numbers() -> None:
    def run() -> list[list[float]]:
        return times(poisson(paper_lengths(20), rate=0.05), 4, slots=4096)

    assert run() == run()


# --- FasterTransformer ---


def test_the_first_iteration_takes_the_shortest_input_and_all_run_to_the_last_end() -> None:
    cost = Seconds()
    assert batch_seconds([sized(3, 2), sized(5, 1)], cost, microbatch_size=2) == 3.0
    # 3 tokens of each; then position 3 (the first's second token, the second's fourth input); then position 4
    assert cost.computed == [([(0, 3)] * 2, 2), ([(3, 1)] * 2, 2), ([(4, 1)] * 2, 2)]


def test_microbatches_follow_each_other_through_the_stages() -> None:
    two = Seconds(1.0, 1.0)
    assert batch_seconds([sized(2, 3)] * 2, two, 2) == 6.0  # one alone leaves stages idle
    assert batch_seconds([sized(2, 3)] * 2, two, 1) == 7.0  # A1 B1 A2 B2 A3 B3, and B3's second stage
    assert batch_seconds([sized(2, 2)] * 3, two, 1) == 7.0


def test_a_batch_takes_all_waiting_requests_and_returns_them_at_its_end() -> None:
    trace = [Request([5] * 2, tokens, at=at) for tokens, at in ((3, 0.0), (1, 1.0), (4, 2.0), (1, 30.0))]
    served = serve(trace, Seconds(), max_batch_size=8, microbatch_size=8)
    assert [one.times for one in served] == [[3.0] * 3, [7.0], [7.0] * 4, [31.0]]
    full = serve([sized(2, 1)] * 3, Seconds(), max_batch_size=2, microbatch_size=2)
    assert [one.times for one in full] == [[1.0], [1.0], [2.0]]


# --- parts ---


def served_by(seconds: float) -> Callable[[list[Request]], list[Answer]]:
    """A system that computes one request after the other, each in `seconds` and with as many tokens as it asks for."""

    def serve(trace: list[Request]) -> list[Answer]:
        end, answers = 0.0, []
        for request in trace:
            end = max(end, request.at) + seconds
            answers.append(Answer(request, request.at, times=[end] * request.max_new_tokens))
        return answers

    return serve


def test_a_curve_is_read_between_its_points_and_loads_are_shares_of_its_peak() -> None:
    curve = Curve("", 4.0, [Point(1.0, 0.1), Point(2.0, 0.2), Point(3.0, 0.6)])
    read = [curve.throughput_at(latency) for latency in (0.05, 0.15, 0.4, 1.0)]
    assert read == pytest.approx([0.0, 1.5, 2.5, 3.0])
    curve = sweep("", served_by(1.0), lambda count: [sized(1, 1)] * count, 100, (0.1, 0.5))
    assert curve.peak == 1.0
    assert [point.throughput for point in curve.points] == pytest.approx([0.1, 0.5], rel=0.25)


def test_the_paper_part_has_both_systems_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "LOADS", (0.5,))
    monkeypatch.setattr(paper, "HOMOGENEOUS", ((4, 4),))
    report = paper.report({"175B": TABLE_1["175B"]}, (1,), 16, tmp_path)
    assert "| orca(1) | " in report
    assert "| ft(8, 8) | " in report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure_10.png", "figure_11.png"]


def test_a_crossing_is_found_from_any_first_rate() -> None:
    for guess in (1.2, 2.0, 7.0):
        assert crossing(lambda rate: Point(rate, rate**2), guess, 4.0) == pytest.approx(2.0, rel=1e-3)
    assert crossing(lambda rate: Point(rate, 5.0), 1.0, 4.0) == 0.0
    with pytest.raises(ValueError, match="too short"):
        crossing(lambda rate: Point(rate, 0.1), 1.0, 4.0)


def test_an_exchange_costs_by_its_commits_and_tokens_and_gateways_read_several_at_once() -> None:
    commits = [Commit("a", 0, [5]), Commit("b", 0, [5, 5, 5]), Commit("c", 0, [])]
    assert Price(exchange=100.0, commit=10.0, token=1.0).of(Exchange("s", "e", 1, commits, Room(0, 0, 16))) == 132
    reads = Reads(gateways=2)
    assert reads.caused(0.0, commits=64) == 2
    assert reads.caused(0.1 * PAUSE, commits=64) == 2  # read after the pause
    assert reads.caused(0.9 * PAUSE, commits=64) == 0  # with those
    assert reads.caused(5.0 * PAUSE, commits=1) == 1  # a gateway without a sequence hears nothing


def test_a_full_engine_gives_all_it_can_and_a_pool_with_too_many_does_not() -> None:
    load = plan.Load()
    assert (load.gateways(1), load.gateways(10), load.gateways(11)) == (1, 1, 2)  # 3,200 chunks a second of 0.028 ms
    load = plan.Load(running=8, iteration=0.002, warm_up=0.1, seconds=0.1)
    alone, many = plan.carry(1, load), plan.carry(20, load)
    assert alone["places filled, %"] == pytest.approx(100, abs=2)
    assert many["server busy, %"] == pytest.approx(100, abs=2)
    assert many["places filled, %"] < alone["places filled, %"]
    assert many["exchange, ms"] > alone["exchange, ms"]
    assert plan.report(load, (1, 2)) == plan.report(load, (1, 2))


def test_recordings_show_what_tells_the_two_policies_apart(tmp_path: Path) -> None:
    """Each token of each request is there once; under request-level scheduling no request joins a batch."""
    simulate.main(["--record", str(tmp_path)])
    for policy in SCHEDULERS:
        events = [orjson.loads(line) for line in file_of(tmp_path, policy).read_bytes().splitlines()]
        recorded = [iteration for event in events for iteration in event["data"]["iterations"]]
        sizes, joins = dict[int, list[int]](), 0
        for iteration in recorded:
            batch = {n for n, *_ in iteration["requests"]}
            joins += bool(batch - sizes.keys() and batch & sizes.keys())
            assert len(batch) <= BATCH
            for n, tokens, kind in iteration["requests"]:
                sizes.setdefault(n, [0, 0])[0 if kind == "i" else 1] += tokens
        expected = [[len(request.prompt), request.max_new_tokens - 1] for request in example(1)]
        assert sorted(sizes.values()) == sorted(expected)
        assert bool(joins) == (policy == "iteration")
