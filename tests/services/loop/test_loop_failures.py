"""EngineLoop when the connection to the pool, the engine or the seat is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import pytest

from services.errors import EngineLost, PoolFault, SchedulerFault, StaleEpoch
from services.loop.clock import now
from services.loop.observers import Leaving, Observer
from services.messages import Exchange, ExchangeReply, Room
from services.scheduling import Knobs
from tests.services.loop.world import SEAT, WORD, Connection, World, begun, stop, virtual


@virtual
async def test_the_engine_continues_while_the_pool_is_away() -> None:
    world, id, loop = await begun(0.55, new=30)
    await world.connection.away(1.0)
    await world.ended(id)
    assert await world.read(id) == ([WORD] * 30, "length")
    assert all(round(later - sooner, 6) == 0.1 for (sooner, _), (later, _) in pairwise(world.engine.ran))
    repeated = [x for _, x in world.connection.sent if x.call == repeated_call(world)]
    assert len(repeated) > 3
    assert all(x is repeated[0] for x in repeated)  # unchanged
    assert len(repeated[0].commits[0].tokens) == 1
    after = next(x for _, x in world.connection.sent if x.call == repeated[0].call + 1)
    assert len(after.commits[0].tokens) > 5  # the tokens of the outage
    await stop(world, loop)


@virtual
async def test_retries_are_delayed_more_and_more_and_the_next_outage_begins_anew() -> None:
    world = World(lease=1.5, iteration=lambda it: 100.0)
    id = await world.submit("a")
    loop = await world.run()
    for start in (0.75, 6.75):  # the lease is renewed every 0.5 s
        await asyncio.sleep(start - now())
        before, world.connection.down = len(world.connection.sent), "request"
        await asyncio.sleep(3)
        world.connection.down = ""
        await asyncio.sleep(1)
        sent = world.connection.sent[before:]
        calls = [time for time, x in sent if x is sent[0][1]]
        # after each failure, which takes 0.001 s
        gaps = [round(later - sooner - 0.001, 3) for sooner, later in pairwise(calls)]
        assert gaps == [0.02, 0.04, 0.08, 0.16, 0.32] + [0.5] * (len(gaps) - 5)
        after, full = sent[len(calls)]
        assert full.holds == [id], "the full state"
        assert after - calls[-1] == pytest.approx(0.001), "at once"
    loop.cancel()


@virtual
async def test_a_bell_that_fails_or_hangs_leads_to_the_next_exchange() -> None:
    world, cancelled = World(lease=3.0), []

    async def hang(seat: str, timeout: float) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(round(now(), 1))

    loop = await world.run()
    await asyncio.sleep(0.5)
    world.connection.cut()
    await asyncio.sleep(0.25)
    world.connection.wait_bell = hang  # type: ignore[method-assign]
    await asyncio.sleep(4)
    sent = [(round(time, 2), x.holds) for time, x in world.connection.sent]
    assert sent == [(0.0, []), (0.52, []), (1.52, None), (3.52, None)], "a dead connection does not cost the lease"
    assert cancelled == [3.5]
    await stop(world, loop)


def repeated_call(world: World) -> int:
    calls = [x.call for _, x in world.connection.sent]
    return max(calls, key=calls.count)


@virtual
async def test_a_lost_reply_has_no_effect() -> None:
    """The pool has executed the call: its repetition returns the same claims and writes no token twice."""
    world = World()
    world.connection.down = "reply"
    ids = [await world.submit(name, new=3) for name in "abc"]
    loop = await world.run()
    await asyncio.sleep(0.5)
    assert world.engine.ran == []
    world.connection.down = ""
    await asyncio.sleep(1.0)
    world.connection.down = "reply"
    await asyncio.sleep(0.2)
    world.connection.down = ""
    await world.ended(*ids)
    assert [await world.read(id) for id in ids] == [([WORD] * 3, "length")] * 3
    assert len(world.engine.ran) == 3
    await stop(world, loop)


@virtual
async def test_an_idle_loop_without_a_pool_is_no_busy_loop() -> None:
    world = World()
    loop = await world.run()
    await asyncio.sleep(0.5)
    world.connection.down = "request"
    await asyncio.sleep(60)
    assert len(world.connection.sent) < 60
    world.connection.down = ""
    await asyncio.sleep(3)
    id = await world.submit("a")
    await world.ended(id)
    await stop(world, loop)


@virtual
async def test_after_the_end_of_its_epoch_the_loop_ends_and_writes_no_tokens() -> None:
    world, id, loop = await begun(1.5, new=5, iteration=lambda it: 1.0)
    assert await world.read(id) == ([WORD], None)
    world.engine.token = lambda id: WORD + 1
    await world.pool.acquire(SEAT, "another", 5.0, dead_epoch=world.epoch)
    with pytest.raises(StaleEpoch, match=r"epoch .* of seat c/0 is over"):
        await loop
    assert await world.read(id) == ([WORD], None)


@virtual
async def test_after_a_lost_engine_the_next_owner_continues_at_the_next_index() -> None:
    world = World()
    world.engine.dies = 3
    ids = [await world.submit(name, prompt=20, new=5) for name in "ab"]
    with pytest.raises(EngineLost):
        await (await world.take_seat()).run()
    assert await world.read("a/0") == ([WORD] * 2, None)
    first, world.engine.ran = world.epoch, []
    world.engine.dies = 0
    loop = await world.run(dead_epoch=first)
    await world.ended(*ids)
    assert world.engine.batches()[0] == {"a/0": 22, "b/0": 22}
    assert [await world.read(id) for id in ids] == [([WORD] * 5, "length")] * 2
    await stop(world, loop)


@pytest.mark.parametrize("lookahead", [0, 1])
@virtual
async def test_after_a_lost_engine_earlier_tokens_are_committed_and_its_requests_are_known(lookahead: int) -> None:
    world = World(exchange=0.25, knobs=Knobs(4, lookahead=lookahead))
    world.engine.dies = 3
    ids = [await world.submit(name, new=5) for name in "ab"]
    with pytest.raises(EngineLost):
        await (await world.take_seat()).run()
    assert world.loop.in_flight == ids
    assert [await world.read(id) for id in ids] == [([WORD] * 2, None)] * 2
    last = world.connection.sent[-1][1]
    assert (last.room.requests, last.idle, last.gauges["ready"]) == (0, False, 0)


@virtual
async def test_after_a_lost_engine_the_loop_waits_for_the_pool_for_one_lease() -> None:
    world = World(lease=5.0)
    world.engine.dies = 3
    id = await world.submit("a", new=5)
    loop = await world.run()
    await asyncio.sleep(0.15)
    world.connection.down = "request"
    with pytest.raises(EngineLost):
        await loop
    assert 5 <= asyncio.get_running_loop().time() < 8
    assert (await world.read(id))[1] is None


@virtual
async def test_after_a_lost_engine_tokens_reach_a_pool_that_comes_back_in_time() -> None:
    world = World(lease=5.0)
    world.engine.dies = 3
    id = await world.submit("a", new=5)
    loop = await world.run()
    await asyncio.sleep(0.15)
    await world.connection.away(2)
    with pytest.raises(EngineLost):
        await loop
    assert await world.read(id) == ([WORD] * 2, None)


@virtual
async def test_an_engine_that_is_lost_together_with_the_seat_is_a_stale_epoch() -> None:
    world, left = World(iteration=lambda it: 1.0), []

    class Noted(Observer):
        def close(self, leaving: Leaving | None) -> None:
            left.append(leaving)

    world.observers = [Noted()]
    world.engine.dies = 2
    id = await world.submit("a", new=5)
    loop = await world.run()
    await asyncio.sleep(0.5)
    world.connection.down = "request"
    await world.pool.acquire(SEAT, "another", 5.0, dead_epoch=world.epoch)
    await asyncio.sleep(2)
    world.connection.down = ""
    with pytest.raises(StaleEpoch):
        await loop
    assert left == [None], "another scheduler owns its requests"
    assert await world.read(id) == ([], None)


@virtual
async def test_a_reported_death_of_the_engine_ends_an_idle_loop_at_once() -> None:
    world = World(lease=30.0)
    loop = await world.run()
    await asyncio.sleep(1)
    world.loop.lose(EngineLost("its connection closed"))
    with pytest.raises(EngineLost, match="its connection closed"):
        await loop
    assert world.loop.in_flight == []
    assert asyncio.get_running_loop().time() == 1


@virtual
async def test_a_reported_death_of_the_engine_ends_a_busy_loop_at_once() -> None:
    world, id, loop = await begun(2.5, new=5, iteration=lambda it: 1.0)
    for _ in range(2):  # it may be seen twice
        world.loop.lose(EngineLost("its connection closed"))
    with pytest.raises(EngineLost, match="its connection closed"):
        await loop
    assert world.loop.in_flight == [id]
    assert asyncio.get_running_loop().time() < 2.6
    assert await world.read(id) == ([WORD] * 2, None)


@virtual
async def test_the_last_iteration_before_a_death_is_counted() -> None:
    world = World()

    def last(id: str) -> int:
        world.loop.lose(EngineLost("its connection closed"))
        return WORD

    world.engine.token = last
    id = await world.submit("a", new=5)
    with pytest.raises(EngineLost):
        await (await world.take_seat()).run()
    assert await world.read(id) == ([WORD], None)
    assert sum(x.counters.get("vllm:generation_tokens|0", 0) for _, x in world.connection.sent) == 1


@virtual
async def test_after_an_outage_the_full_state_is_sent_once() -> None:
    world, id, loop = await begun(0.55, new=30)
    await world.connection.away(0.5)
    await world.ended(id)
    said = [x for _, x in world.connection.sent if x.holds is not None]
    assert [x.holds for x in said] == [[], [id]]  # at the start of the epoch, and after the outage
    assert [x.figures for x in said] == [world.figures] * 2
    await stop(world, loop)


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({"lost": True}, True),
        ({"foreign": ["a/0"]}, True),  # it was given out again
        ({"have": {"a/0": 0}}, True),
        ({"cancelled": ["a/0"]}, False),
    ],
)
@virtual
async def test_a_reply_that_shows_a_loss_is_followed_by_the_full_state(fields: dict[str, Any], runs: bool) -> None:
    world, exchange = World(), Connection.exchange
    await world.submit("a")

    async def lossy(sent: Exchange) -> ExchangeReply:
        reply = await exchange(world.connection, sent)
        return replace(reply, **fields) if reply.claims else reply

    world.connection.exchange = lossy  # type: ignore[method-assign]
    loop = await world.run()
    await asyncio.sleep(0.05)
    assert [x.holds for _, x in world.connection.sent] == [[], ["a/0"] if runs else None]
    assert world.scheduler.held() == ["a/0"]
    assert len(world.engine.ran) == runs
    loop.cancel()


@pytest.mark.parametrize(("seconds", "committed"), [(0.15, 2), (4.0, 1)])
@virtual
async def test_inconsistent_blocks_end_the_ownership(seconds: float, committed: int) -> None:
    """A call that is pending may take a third of the lease."""
    world, id, loop = await begun(0.15, new=3)
    world.connection.seconds = seconds
    world.scheduler.blocks.allocate("nobody", [], 1)  # the damage
    with pytest.raises(SchedulerFault) as fault:
        await loop
    assert "1 blocks are held by" in str(fault.value.__cause__)
    sent = len(world.connection.sent)
    await asyncio.sleep(30)
    assert len(world.connection.sent) == sent  # nothing more is written, and the lease expires
    assert await world.read(id) == ([WORD] * committed, None)


@pytest.mark.parametrize("how", ["cancelled", "dropped"])
@virtual
async def test_blocks_are_checked_when_the_last_request_leaves(how: str) -> None:
    world, _, loop = await begun(0.15, new=50)
    world.scheduler.blocks.allocate("nobody", [], 1)
    if how == "cancelled":
        await world.pool.cancel("a")
    else:
        sequence = world.pool._sequences["a/0"]
        del world.pool._seats[SEAT].running["a/0"]  # as if the pool had lost its owner
        sequence.seat = None
    with pytest.raises(SchedulerFault) as fault:
        await loop
    assert "1 blocks are held by" in str(fault.value.__cause__)


@virtual
async def test_a_request_of_another_seat_is_not_computed_any_more() -> None:
    world, id, loop = await begun(0.55, new=50)
    grant = await world.pool.acquire("c/1", "another", 5.0)
    del world.pool._seats[SEAT].running[id]  # as if the pool had lost this claim
    world.pool._enqueue(world.pool._sequences[id])
    (claim,) = (await world.pool.exchange(Exchange("c/1", grant.epoch, 1, [], Room(1, 10, 16)))).claims
    assert claim.id == id
    ran = len(world.engine.ran)
    await asyncio.sleep(1)
    assert len(world.engine.ran) <= ran + 1
    assert world.scheduler.held() == []
    await stop(world, loop)


@pytest.mark.parametrize("call", ["exchange", "wait_bell"])
@virtual
async def test_an_error_of_the_pool_s_server_gives_no_request_a_strike(call: str) -> None:
    world = World()
    if call == "exchange":
        await world.submit("a", new=30)
    loop = await world.run()
    await asyncio.sleep(0.55)

    async def refuse(*_: object) -> NoReturn:
        raise PoolFault("an unknown command")

    setattr(world.connection, call, refuse)
    with pytest.raises(PoolFault):
        await asyncio.wait_for(loop, 10)
