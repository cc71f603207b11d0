"""The event stream is a hint, the token storage is authoritative: each index arrives once, whatever is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from committer import END, Committer, submit, take

from gateway.errors import ApiError
from gateway.pool_client import event_reader
from gateway.pool_client.event_buffer import EventBuffer
from gateway.pool_client.event_reader import EventReader
from gateway.pool_client.heartbeat import Heartbeat
from services.messages import Commit, End, NewSequence, Snapshot, Submission, TokenEvent
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.requests import FinishReason, SamplingParams


@pytest.fixture
async def reader(pool: RequestPool) -> AsyncIterator[EventReader]:
    reader = EventReader(pool, "gw")
    running = asyncio.create_task(reader.run())
    yield reader
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_tokens_and_end_in_order(pool: RequestPool, reader: EventReader) -> None:
    buffer, committer = await submit(pool, reader, "a"), Committer(pool)
    await committer.commit(Commit("a/0", 0, [7]))
    assert await take(buffer, 1) == [(0, 7)]
    await committer.commit(Commit("a/0", 1, [8, 9], end=END))
    assert await take(buffer, 3) == [(1, 8), (2, 9), (3, None)]
    assert not buffer.open


@pytest.mark.parametrize("streams", [event_reader.MANY - 1, event_reader.MANY])
async def test_tokens_of_many_streams_arrive_together(
    pool: RequestPool, reader: EventReader, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    """After a read for many streams the next one waits; for few streams it does not."""
    over, pauses = asyncio.Event(), 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1
        await over.wait()

    monkeypatch.setattr(reader, "_pause", pause)
    buffers, committer = [await submit(pool, reader, f"r{i}") for i in range(streams)], Committer(pool)
    await committer.commit(*(Commit(f"r{i}/0", 0, [5]) for i in range(streams)))
    assert [await take(buffer, 1) for buffer in buffers] == [[(0, 5)]] * streams
    await committer.commit(Commit("r0/0", 1, [6]))
    if streams < event_reader.MANY:
        assert await take(buffers[0], 1) == [(1, 6)]
    await committer.commit(Commit("r0/0", 2, [7], end=END))
    over.set()
    last = [(1, 6), (2, 7), (3, None)][streams < event_reader.MANY :]
    assert [(event.index, event.token) for event in await buffers[0].take()] == last
    assert pauses == (streams >= event_reader.MANY)


async def test_a_gap_is_read_from_storage(pool: RequestPool, reader: EventReader) -> None:
    buffer, committer = await submit(pool, reader, "a"), Committer(pool)
    await committer.commit(Commit("a/0", 0, [5]))
    assert await take(buffer, 1) == [(0, 5)]
    await pool.unregister("gw")  # events are lost from here ...
    await committer.commit(Commit("a/0", 1, [6]))
    await pool.listen("gw", {"a/0": 2})  # ... to here
    await committer.commit(Commit("a/0", 2, [7]))
    assert await take(buffer, 2) == [(1, 6), (2, 7)]
    await committer.commit(Commit("a/0", 3, [8], end=END))
    assert await take(buffer, 2) == [(3, 8), (4, None)]


async def test_a_forgotten_gateway_learns_it_from_its_heartbeat(pool: RequestPool, reader: EventReader) -> None:
    heartbeat = Heartbeat(pool, "gw", Counters(), dict, reader.restart)
    await heartbeat.beat()
    buffer, committer = await submit(pool, reader, "a", choices=2), Committer(pool)
    await committer.commit(Commit("a/0", 0, [5]))
    assert await take(buffer, 1) == [(0, 5)]
    await pool.unregister("gw")
    await committer.commit(Commit("a/0", 1, [6]), Commit("a/1", 0, [1], end=END))
    await heartbeat.beat()
    assert sorted(await take(buffer, 3), key=str) == [(0, 1), (1, 6), (1, None)]
    await committer.commit(Commit("a/0", 2, [7], end=END))
    assert await take(buffer, 2) == [(2, 7), (3, None)]


async def test_a_server_whose_events_start_again_below_is_read_from_its_start(
    pool: RequestPool, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose clock is behind replaces one that broke down."""
    monkeypatch.setattr("gateway.pool_client.event_reader.SILENCE", 1000.0)
    command, meta = pool._server.command, f"{pool._prefix}meta"
    await command("HSET", meta, "tick", 2**52)
    buffer, committer = await submit(pool, reader, "a"), Committer(pool)
    await committer.commit(Commit("a/0", 0, [7]))
    assert await take(buffer, 1) == [(0, 7)]
    await command("HDEL", meta, "tick")
    await pool.unregister("gw")
    await command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    while not await command("EXISTS", f"{pool._prefix}listening:gw"):  # noqa: ASYNC110 - the server sets no event
        await asyncio.sleep(0.01)
    await committer.commit(Commit("a/0", 1, [8]))
    assert await take(buffer, 1) == [(1, 8)]


async def test_a_sequence_without_events_is_read_from_storage(
    pool: RequestPool, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last events of a sequence were lost, and no later event reveals the gap."""
    monkeypatch.setattr(event_reader, "SILENCE", 0.2)
    buffer, committer = await submit(pool, reader, "a"), Committer(pool)
    await pool.unregister("gw")
    await committer.commit(Commit("a/0", 0, [5], end=END))
    assert await take(buffer, 2) == [(0, 5), (1, None)]


async def test_a_request_that_is_being_submitted_is_not_lost(pool: RequestPool, reader: EventReader) -> None:
    buffer = reader.follow("a", ["a/0"])
    await reader.reread()
    await pool.submit(Submission("a", "gw", [NewSequence("a/0", [1], SamplingParams(max_new_tokens=2))]))
    buffer.submitted = True
    await Committer(pool).commit(Commit("a/0", 0, [5], end=END))
    assert await take(buffer, 2) == [(0, 5), (1, None)]


async def test_two_followers_have_different_positions(pool: RequestPool, reader: EventReader) -> None:
    first, committer = await submit(pool, reader, "a"), Committer(pool)
    await committer.commit(Commit("a/0", 0, [5, 6]))
    assert await take(first, 2) == [(0, 5), (1, 6)]
    second = reader.follow("a", ["a/0"])
    second.submitted = True
    await reader.reread(["a/0"])
    await committer.commit(Commit("a/0", 2, [7], end=END))
    assert await take(first, 2) == [(2, 7), (3, None)]
    assert await take(second, 4) == [(0, 5), (1, 6), (2, 7), (3, None)]
    reader.unfollow(first)
    reader.unfollow(second)
    assert reader._buffers == {}


def test_a_buffer_takes_each_index_once() -> None:
    buffer = EventBuffer("r", ["s"])
    assert buffer.put(TokenEvent("s", 0, 4), 0)
    assert buffer.put(TokenEvent("s", 0, 4), 0)
    assert not buffer.put(TokenEvent("s", 2, 6), 0)
    buffer.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 1)
    buffer.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 2)
    assert buffer.put(TokenEvent("s", 3, None, end=END), 0)
    events = asyncio.run(buffer.take())
    assert [(e.index, e.token) for e in events] == [(0, 4), (1, 5), (2, 6), (3, None)]


@pytest.mark.parametrize("other", [TokenEvent("s", 1, 9), TokenEvent("s", 1, None, end=END)])
def test_a_repeated_event_must_be_equal(other: TokenEvent) -> None:
    buffer = EventBuffer("r", ["s"])
    for index, token in enumerate([4, 5]):
        buffer.put(TokenEvent("s", index, token), 0)
    buffer.put(TokenEvent("s", 1, 5), 0)
    buffer.put(other, 0)
    assert len(asyncio.run(buffer.take())) == 2
    with pytest.raises(ApiError) as error:
        asyncio.run(buffer.take())
    assert error.value.body()["error"]["code"] == "tokens_diverged"


def test_a_cancellation_after_lost_tokens_ends_the_request() -> None:
    """The pool lost tokens 1 and 2, and then the request was cancelled."""
    buffer, cancelled = EventBuffer("r", ["s"]), End(FinishReason.CANCELLED)
    for index in range(3):
        buffer.put(TokenEvent("s", index, 4), 0)
    buffer.put(TokenEvent("s", 1, None, end=cancelled), 0)
    assert asyncio.run(buffer.take())[3:] == [TokenEvent("s", 3, None, end=cancelled)]
    assert not buffer.open
