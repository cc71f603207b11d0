"""EngineLoop on virtual time: what waits for what, with exact times, and that nothing is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from load.trace import Request
from load.workloads import alike, sized
from services.messages import Iteration, NewSequence, Submission
from services.requests import BATCH_CLASS, SamplingParams
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler
from services.scheduling.last_class import CLAIM_INTERVAL, LULL
from tests.services.loop.test_request_stats import counted
from tests.services.loop.world import EOS, SEAT, WORD, World, begun, stop, virtual


@virtual
async def test_a_single_request_runs_and_is_committed_without_delay() -> None:
    world = World(exchange=0.001)
    loop = await world.run()
    await asyncio.sleep(1)
    id = await world.submit("a", prompt=20, new=3)
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 3, "length")
    assert world.engine.batches() == [{id: 20}, {id: 1}, {id: 1}]
    starts = [round(time, 3) for time, _ in world.engine.ran]
    assert starts == [1.001, 1.101, 1.201]  # the bell, one exchange, then iterations without gaps
    committed = [(round(time, 3), x.commits[0].tokens) for time, x in world.connection.sent if x.commits]
    assert committed == [(1.101, [WORD]), (1.201, [WORD]), (1.301, [WORD])]  # each token as soon as it is sampled
    await stop(world, loop)


@virtual
async def test_claims_fill_the_batch_without_a_gap_after_ends_by_length() -> None:
    world = World(batch=2)
    ids = [await world.submit(name, new=2) for name in "abcdef"]
    loop = await world.run()
    await world.ended(*ids)
    batches = [list(batch) for batch in world.engine.batches()]
    assert batches == [["a/0", "b/0"], ["a/0", "b/0"], ["c/0", "d/0"], ["c/0", "d/0"], ["e/0", "f/0"], ["e/0", "f/0"]]
    assert all(round(later - sooner, 6) == 0.1 for (sooner, _), (later, _) in pairwise(world.engine.ran))
    await stop(world, loop)


@virtual
async def test_after_an_end_by_eos_the_place_is_filled_one_iteration_later() -> None:
    world = World(batch=1)
    world.engine.token = lambda id: EOS
    ids = [await world.submit(name, new=9) for name in "ab"]
    loop = await world.run()
    await world.ended(*ids)
    assert await world.read("a/0") == ([EOS], "stop")
    assert [list(batch) for batch in world.engine.batches()] == [["a/0"], ["b/0"]]
    await stop(world, loop)


@virtual
async def test_a_claim_made_during_an_iteration_joins_the_next_one() -> None:
    world, _, loop = await begun(0.05, new=5)
    await world.submit(
        "b", prompt=30, new=2
    )  # during the first iteration: it is claimed in the second and runs in the third
    await world.ended("a/0", "b/0")
    assert world.engine.batches()[:3] == [{"a/0": 16}, {"a/0": 1}, {"a/0": 1, "b/0": 30}]
    await stop(world, loop)


@virtual
async def test_the_lease_is_renewed_while_a_long_iteration_runs() -> None:
    world, id, loop = await begun(9.9, new=1, lease=3.0, iteration=lambda it: 10.0)
    assert not (await world.pool.acquire(SEAT, "another", 3.0)).granted
    sent = [round(time, 2) for time, _ in world.connection.sent]
    assert sent == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert not any(x.idle for _, x in world.connection.sent[1:])
    await world.ended(id)
    await stop(world, loop)


@virtual
async def test_an_idle_loop_renews_the_lease_and_wakes_at_the_bell() -> None:
    world = World(lease=3.0)
    loop = await world.run()
    await asyncio.sleep(10.5)
    assert all(x.idle for _, x in world.connection.sent)
    assert all(later - sooner < 1.01 for (sooner, _), (later, _) in pairwise(world.connection.sent))
    assert len(world.connection.sent) == 11
    await world.submit("a")
    await asyncio.sleep(0.01)
    assert len(world.engine.ran) == 1
    await world.ended("a/0")
    await stop(world, loop)


@virtual
async def test_pipeline_stages_are_kept_busy_with_as_many_batches() -> None:
    """Algorithm 1, lines 9 and 10. An iteration takes 0.2 s and leaves the first of two stages after 0.1 s."""
    world = World(iteration=lambda it: 0.2, knobs=Knobs(1, batches_in_flight=2))
    ids = [await world.submit(name, new=3) for name in "ab"]
    loop = await world.run()
    await world.ended(*ids)
    assert [list(batch) for batch in world.engine.batches()] == [["a/0"], ["b/0"]] * 3
    assert all(round(later - sooner, 6) == 0.1 for (sooner, _), (later, _) in pairwise(world.engine.ran))
    assert [await world.read(id) for id in ids] == [([WORD] * 3, "length")] * 2
    await stop(world, loop)


@virtual
async def test_with_lookahead_an_engine_does_not_wait_for_a_slow_scheduler() -> None:
    """An iteration takes 0.1 s, and its result arrives 0.05 s later."""
    spent, measured = {}, {}
    for lookahead in (0, 1):
        world = World(knobs=Knobs(4, lookahead=lookahead))
        world.engine.delay = 0.05
        id = await world.submit("a", new=10)
        loop = await world.run()
        await world.ended(id)
        starts = [began for began, _ in world.engine.ran]
        spent[lookahead] = {round(later - sooner, 6) for sooner, later in pairwise(starts)}
        assert await world.read(id) == ([WORD] * 10, "length")
        assert len(starts) == 10  # an end by length is known in advance, so no iteration is wasted
        await stop(world, loop)
        measured[lookahead] = counted(world)["orca:iteration_seconds_sum|0"]
    assert measured == pytest.approx({0: 10 * 0.15, 1: 0.15 + 9 * 0.1})  # each from the end of the one before it
    assert spent == {0: {0.15}, 1: {0.1}}


@virtual
async def test_with_lookahead_an_end_by_eos_wastes_one_token() -> None:
    world = World(knobs=Knobs(1, lookahead=1))
    world.engine.token = lambda id: EOS
    ids = [await world.submit(name, new=9) for name in "ab"]
    loop = await world.run()
    await world.ended(*ids)
    assert [await world.read(id) for id in ids] == [([EOS], "stop")] * 2
    assert [list(batch) for batch in world.engine.batches()] == [["a/0"], ["a/0"], ["b/0"], ["b/0"]]
    await stop(world, loop)


@virtual
async def test_engines_on_one_pool_claim_as_much_as_they_have_room_for() -> None:
    """One engine is three times as fast as the other, and does three times the work."""
    worlds = [World(iteration=lambda it, seconds=seconds: seconds, knobs=Knobs(2)) for seconds in (0.1, 0.3)]
    worlds[1].pool = worlds[1].connection.pool = worlds[0].pool
    ids = [await worlds[0].submit(f"{i:02}", new=4) for i in range(32)]
    loops = [await world.run(seat=f"c/{i}") for i, world in enumerate(worlds)]
    await worlds[0].ended(*ids)
    assert [await worlds[0].read(id) for id in ids] == [([WORD] * 4, "length")] * 32
    served = [len({id for batch in world.engine.batches() for id in batch}) for world in worlds]
    assert served == [24, 8]
    for world, loop in zip(worlds, loops, strict=True):
        await stop(world, loop)


@virtual
async def test_a_slow_pool_does_not_slow_the_engine() -> None:
    world = World(iteration=lambda it: 0.01, exchange=0.035)
    id = await world.submit("a", new=20)
    loop = await world.run()
    await world.ended(id)
    assert all(round(later - sooner, 6) == 0.01 for (sooner, _), (later, _) in pairwise(world.engine.ran))
    assert await world.read(id) == ([WORD] * 20, "length")
    assert len(world.loop._engine_lost._callbacks) <= 1  # type: ignore[attr-defined]  # those of earlier waits are gone
    await stop(world, loop)


@virtual
async def test_lines_of_batches_start_after_the_lull_and_requests_are_claimed_beside_them() -> None:
    world = World(lease=30.0, iteration=lambda it: 0.3)
    other = await world.submit("a", new=1)
    line = NewSequence("line/0", [WORD], SamplingParams(2))
    await world.pool.submit(Submission("line", "g", [line], priority=BATCH_CLASS))
    loop = await world.run()
    await world.ended(other, line.id)
    (_, second, _) = (began for began, _ in world.engine.ran)
    assert second == pytest.approx(0.3 + LULL, abs=0.05)  # after the end of the iteration with another request
    beside = [time for time, _ in world.connection.sent if second + 0.02 < time < second + 0.28]
    assert len(beside) > 0.2 / CLAIM_INTERVAL
    await stop(world, loop)


@virtual
async def test_cancelled_requests_are_not_in_the_next_iteration() -> None:
    world = World()
    await world.submit("a", new=50)
    await world.submit("b", new=50)
    loop = await world.run()
    await asyncio.sleep(0.55)
    await world.pool.cancel("a")
    await world.ended("a/0")
    tokens, reason = await world.read("a/0")
    assert reason == "cancelled"
    assert 5 <= len(tokens) <= 7
    await world.pool.cancel("b")
    await world.ended("b/0")
    await stop(world, loop)


@virtual
async def test_stop_commits_the_iteration_in_flight_and_claims_nothing_more() -> None:
    world = World(iteration=lambda it: 1.0, batch=2)
    ids = [await world.submit(name, new=5) for name in "abc"]
    loop = await world.run()
    await asyncio.sleep(1.5)
    world.loop.stop()
    await loop
    assert now_is(2.0)
    assert not world.connection.sent[-1][1].idle
    assert [await world.read(id) for id in ids] == [([WORD] * 2, None)] * 2 + [([], None)]
    await world.pool.release(SEAT, world.epoch)
    again = await world.run("another")
    await world.ended(*ids)
    assert [await world.read(id) for id in ids] == [([WORD] * 5, "length")] * 3
    await stop(world, again)


def now_is(time: float) -> bool:
    return abs(asyncio.get_running_loop().time() - time) < 0.01


@virtual
async def test_stop_ends_an_idle_loop_at_once() -> None:
    world = World(lease=30.0)
    loop = await world.run()
    await asyncio.sleep(1.0)
    await stop(world, loop)
    assert now_is(1.0)


@virtual
async def test_figures_are_sent_once_and_counters_add_up() -> None:
    world = World(batch=2)
    ids = [await world.submit("a", prompt=10, new=3), await world.submit("b", prompt=20, new=2)]
    ids += [await world.submit("c", prompt=5, new=1)]
    loop = await world.run()
    await world.ended(*ids)
    await stop(world, loop)
    assert [x.figures for _, x in world.connection.sent] == [world.figures] + [None] * (len(world.connection.sent) - 1)
    sums = counted(world)
    assert sums["orca:exchange_seconds_sum|0"] == pytest.approx(0.001 * (len(world.connection.sent) - 1))
    assert sums["orca:iterations|0"] == 3
    assert sums["orca:mixed_iterations|0"] == 1
    assert sums["vllm:prompt_tokens|0"] == 35
    assert sums["vllm:generation_tokens|0"] == 6
    assert sums["vllm:request_success|0|length"] == 3
    assert sums["vllm:iteration_tokens_total_sum|0"] == 32 + 2 + 7  # as in vLLM, with the first tokens
    last = world.connection.sent[-1][1]
    assert last.gauges == {"ready": 1, "kv_usage": 0.0, "paused": 0, "batch_size": 2, "peak_batch_size": 2}
    assert last.summary == "iteration 3: 2 requests (1 initiation, 1 increment), 6 tokens, 100.0 ms"


EQUAL_SIZE, SHORT_LONG_MIX = alike(128, 128, 16), [sized(32, 32), sized(512, 128)] * 8


@pytest.mark.parametrize(
    ("kind", "workload", "iterations"),
    [
        (Scheduler, SHORT_LONG_MIX, 672),
        (RequestLevelScheduler, SHORT_LONG_MIX, 1024),
        (Scheduler, EQUAL_SIZE, 1024),
        (RequestLevelScheduler, EQUAL_SIZE, 1024),
    ],
)
@virtual
async def test_iterations_of_the_walkthroughs_workloads(
    kind: type[Scheduler], workload: list[Request], iterations: int
) -> None:
    """Sixteen requests, two at a time: the numbers of iterations in the article."""

    def seconds(iteration: Iteration) -> float:
        return 0.01

    world = World(kind, batch=2, iteration=seconds)
    ids = [
        await world.submit(f"{i:02}", len(request.prompt), request.max_new_tokens) for i, request in enumerate(workload)
    ]
    loop = await world.run()
    await world.ended(*ids)
    assert len(world.engine.ran) == iterations
    for id, request in zip(ids, workload, strict=True):
        assert await world.read(id) == ([WORD] * request.max_new_tokens, "length")
    await stop(world, loop)
