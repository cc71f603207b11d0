"""The event stream is a hint, token storage the truth: whatever is lost on the way, each index comes once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from pump import END, Pump, submit, take

from gateway import reader as reader_module
from gateway.errors import ApiError
from gateway.heartbeat import Heartbeat
from gateway.inbox import Inbox
from gateway.reader import Reader
from services.messages import Commit, End, NewSequence, Snapshot, Submission, TokenEvent
from services.pool.pool import RequestPool
from services.requests import FinishReason, SamplingParams
from services.telemetry import Counters


@pytest.fixture
async def reader(pool: RequestPool) -> AsyncIterator[Reader]:
    reader = Reader(pool, "gw")
    running = asyncio.create_task(reader.run())
    yield reader
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_tokens_and_end_in_order(pool: RequestPool, reader: Reader) -> None:
    inbox, pump = await submit(pool, reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [7]))
    assert await take(inbox, 1) == [(0, 7)]
    await pump.commit(Commit("a/0", 1, [8, 9], end=END))
    assert await take(inbox, 3) == [(1, 8), (2, 9), (3, None)]
    assert not inbox.open


async def test_a_gap_is_read_from_storage(pool: RequestPool, reader: Reader) -> None:
    inbox, pump = await submit(pool, reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [5]))
    assert await take(inbox, 1) == [(0, 5)]
    await pool.unregister("gw")  # events go nowhere from here ...
    await pump.commit(Commit("a/0", 1, [6]))
    await pool.listen("gw", {"a/0": 2})  # ... to here
    await pump.commit(Commit("a/0", 2, [7]))
    assert await take(inbox, 2) == [(1, 6), (2, 7)]
    await pump.commit(Commit("a/0", 3, [8], end=END))
    assert await take(inbox, 2) == [(3, 8), (4, None)]


async def test_a_forgotten_gateway_is_told_by_its_heartbeat(pool: RequestPool, reader: Reader) -> None:
    heartbeat = Heartbeat(pool, "gw", Counters(), reader.restart)
    await heartbeat.beat()
    inbox, pump = await submit(pool, reader, "a", choices=2), Pump(pool)
    await pump.commit(Commit("a/0", 0, [5]))
    assert await take(inbox, 1) == [(0, 5)]
    await pool.unregister("gw")
    await pump.commit(Commit("a/0", 1, [6]), Commit("a/1", 0, [1], end=END))
    await heartbeat.beat()
    assert sorted(await take(inbox, 3), key=str) == [(0, 1), (1, 6), (1, None)]
    await pump.commit(Commit("a/0", 2, [7], end=END))
    assert await take(inbox, 2) == [(2, 7), (3, None)]


async def test_a_server_whose_events_start_again_below_is_read_from_its_start(
    pool: RequestPool, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server, whose clock is behind, in place of the one that broke down."""
    monkeypatch.setattr("gateway.reader.SILENCE", 1000.0)
    command, meta = pool._server.command, f"{pool._prefix}meta"
    await command("HSET", meta, "tick", 2**52)
    inbox, pump = await submit(pool, reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [7]))
    assert await take(inbox, 1) == [(0, 7)]
    await command("HDEL", meta, "tick")
    await pool.unregister("gw")
    await command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    while not await command("EXISTS", f"{pool._prefix}listening:gw"):  # noqa: ASYNC110 - the server sets no event
        await asyncio.sleep(0.01)
    await pump.commit(Commit("a/0", 1, [8]))
    assert await take(inbox, 1) == [(1, 8)]


async def test_a_silent_sequence_is_looked_after(
    pool: RequestPool, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last events were lost, and none comes that would show the gap."""
    monkeypatch.setattr(reader_module, "SILENCE", 0.2)
    inbox, pump = await submit(pool, reader, "a"), Pump(pool)
    await pool.unregister("gw")
    await pump.commit(Commit("a/0", 0, [5], end=END))
    assert await take(inbox, 2) == [(0, 5), (1, None)]


async def test_a_request_on_its_way_is_not_taken_for_lost(pool: RequestPool, reader: Reader) -> None:
    inbox = reader.follow("a", ["a/0"])
    await reader.reread()
    await pool.submit(Submission("a", "gw", [NewSequence("a/0", [1], SamplingParams(max_new_tokens=2))]))
    inbox.submitted = True
    await Pump(pool).commit(Commit("a/0", 0, [5], end=END))
    assert await take(inbox, 2) == [(0, 5), (1, None)]


async def test_two_followers_stand_at_different_places(pool: RequestPool, reader: Reader) -> None:
    first, pump = await submit(pool, reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [5, 6]))
    assert await take(first, 2) == [(0, 5), (1, 6)]
    second = reader.follow("a", ["a/0"])
    second.submitted = True
    await reader.reread(["a/0"])
    await pump.commit(Commit("a/0", 2, [7], end=END))
    assert await take(first, 2) == [(2, 7), (3, None)]
    assert await take(second, 4) == [(0, 5), (1, 6), (2, 7), (3, None)]
    reader.unfollow(first)
    reader.unfollow(second)
    assert reader._inboxes == {}


def test_an_inbox_takes_each_index_once() -> None:
    inbox = Inbox("r", ["s"])
    assert inbox.put(TokenEvent("s", 0, 4), 0)
    assert inbox.put(TokenEvent("s", 0, 4), 0)
    assert not inbox.put(TokenEvent("s", 2, 6), 0)
    inbox.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 1)
    inbox.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 2)
    assert inbox.put(TokenEvent("s", 3, None, end=END), 0)
    events = asyncio.run(inbox.take())
    assert [(e.index, e.token) for e in events] == [(0, 4), (1, 5), (2, 6), (3, None)]


@pytest.mark.parametrize("other", [TokenEvent("s", 1, 9), TokenEvent("s", 1, None, end=END)])
def test_what_comes_again_must_be_the_same(other: TokenEvent) -> None:
    inbox = Inbox("r", ["s"])
    for index, token in enumerate([4, 5]):
        inbox.put(TokenEvent("s", index, token), 0)
    inbox.put(TokenEvent("s", 1, 5), 0)
    inbox.put(other, 0)
    assert len(asyncio.run(inbox.take())) == 2
    with pytest.raises(ApiError) as error:
        asyncio.run(inbox.take())
    assert error.value.body()["error"]["code"] == "tokens_diverged"


def test_a_cancellation_behind_a_lost_tail_ends_it() -> None:
    """The pool lost tokens 1 and 2, and then the request was cancelled."""
    inbox, cancelled = Inbox("r", ["s"]), End(FinishReason.CANCELLED)
    for index in range(3):
        inbox.put(TokenEvent("s", index, 4), 0)
    inbox.put(TokenEvent("s", 1, None, end=cancelled), 0)
    assert asyncio.run(inbox.take())[3:] == [TokenEvent("s", 3, None, end=cancelled)]
    assert not inbox.open
