"""The event stream is a hint, the token storage is authoritative: each index arrives once, whatever is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
from committer import END, Committer, submit, take

from gateway.errors import ApiError
from gateway.pool_client import event_reader
from gateway.pool_client.event_reader import EventBuffer, EventReader
from gateway.pool_client.heartbeat import Heartbeat
from services.errors import PoolUnavailable
from services.messages import Commit, End, Logprobs, NewSequence, Snapshot, Submission, TokenEvent
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


async def test_a_forgotten_gateway_learns_it_from_its_heartbeat(
    pool: RequestPool, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "LISTEN_AT_ONCE", 1)
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
    assert await take(second, 2) == [(0, 5), (1, 6)]
    await committer.commit(Commit("a/0", 2, [7], end=END))
    assert await take(first, 2) == await take(second, 2) == [(2, 7), (3, None)]
    reader.unfollow(first)
    reader.unfollow(second)
    assert reader._buffers == {}


async def test_requests_count_as_lost_until_they_are_found_or_nobody_follows_them() -> None:
    reader = EventReader(RequestPool("redis://127.0.0.1:1"), "gw")
    first, second, other = (reader.follow(request, [f"{request}/0"]) for request in "aab")

    def read(id: str, known: bool = False) -> tuple[dict[str, float], bool]:
        reader._catch_up(Snapshot(id, known, 0, 0, []), reader._buffers[id])
        return dict(reader.lost), reader.anything_lost.is_set()

    assert (read("a/0"), reader._from_indices(["a/0"])) == (({}, False), {}), "they are being submitted"
    for buffer in (first, second, other):
        buffer.submitted = True
    first.put(TokenEvent("a/0", 0, 7), reader._now())
    assert (reader._from_indices(["a/0"]), reader._silent()) == ({"a/0": 0}, ["a/0", "b/0"])
    lost, _ = read("a/0")
    read("b/0")
    assert read("a/0")[0]["a"] == lost["a"], "since the first time"
    assert read("b/0", known=True) == (lost, True)
    reader.unfollow(first)
    assert (reader.lost, reader.anything_lost.is_set(), reader.follows("a")) == (lost, True, True)
    reader.unfollow(second)
    assert (reader.lost, reader.anything_lost.is_set(), reader.follows("a")) == ({}, False, False)
    read("b/0")
    reader._lose(PoolUnavailable("away"))
    assert (reader.lost, reader.anything_lost.is_set(), reader.settled) == ({}, False, False)


async def test_requests_may_be_put_back_for_a_while_after_an_outage(
    pool: RequestPool, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(pool, reader, "a")
    listen, away, reread = pool.listen, pool.read_events, asyncio.Event()

    async def fail(*_: object) -> NoReturn:
        monkeypatch.setattr(pool, "read_events", away)
        raise PoolUnavailable("away")

    async def listening(gateway: str, wanted: dict[str, int]) -> list[Snapshot]:
        assert reader.pool_unavailable, "until all is read again"
        reread.set()
        return await listen(gateway, wanted)

    assert reader.settled
    monkeypatch.setattr(pool, "listen", listening)
    monkeypatch.setattr(pool, "read_events", fail)
    await Committer(pool).commit(Commit("a/0", 0, [5]))  # ends the read that waits
    async with asyncio.timeout(10):
        await reread.wait()
        while reader.pool_unavailable:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert not reader.settled


def test_a_buffer_takes_each_index_once() -> None:
    buffer = EventBuffer("r", ["s"])
    assert buffer.put(TokenEvent("s", 0, 4), 0)
    assert buffer.put(TokenEvent("s", 0, 4), 0)
    assert not buffer.put(TokenEvent("s", 2, 6), 0)
    said = [Logprobs(-1.0, []), Logprobs(-2.0, [])]
    buffer.catch_up(Snapshot("s", True, 3, 1, [5, 6], said, END), 1)
    buffer.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 2)
    assert buffer.put(TokenEvent("s", 3, None, end=END), 0)
    assert buffer.arrived == 1
    events = asyncio.run(buffer.take())
    assert [(e.index, e.token, e.logprobs) for e in events] == [
        (0, 4, None),
        (1, 5, said[0]),
        (2, 6, said[1]),
        (3, None, None),
    ]
    assert buffer.logprobs == {"s": []}, "there is no submission to put back"


async def test_a_wait_ends_in_time_whatever_waits_came_before() -> None:
    buffer, loop = EventBuffer("r", ["s"]), asyncio.get_running_loop()
    waiting = asyncio.create_task(buffer.take(loop.time() + 600))
    await asyncio.sleep(0)
    buffer.put(TokenEvent("s", 0, 4), 0)
    assert await waiting
    async with asyncio.timeout(10):
        for _ in range(2):
            assert await buffer.take(loop.time() + 0.01) == []
    waiting = asyncio.create_task(buffer.take(loop.time() + 600))
    await asyncio.sleep(0)
    timer = buffer._timer
    buffer.close()
    assert timer is not None
    assert timer.cancelled()
    waiting.cancel()


@pytest.mark.parametrize(
    "other", [TokenEvent("s", 1, 9), TokenEvent("s", 1, None, end=END), TokenEvent("s", 2, 9), TokenEvent("s", 3, 9)]
)
def test_a_repeated_event_must_be_equal(other: TokenEvent) -> None:
    buffer = EventBuffer("r", ["s"])
    for index, token in enumerate([4, 5]):
        buffer.put(TokenEvent("s", index, token), 0)
    buffer.put(TokenEvent("s", 1, 5), 0)
    ended = other.index > 1
    if ended:
        buffer.put(TokenEvent("s", 2, None, end=END), 0)
    buffer.put(other, 0)
    buffer.fail(ValueError("a later error"))
    assert len(asyncio.run(buffer.take())) == 2 + ended
    with pytest.raises(ApiError) as error:
        asyncio.run(buffer.take())
    assert error.value.body()["error"]["code"] == "tokens_diverged"


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_a_cancellation_after_lost_tokens_ends_the_request(reason: FinishReason) -> None:
    """The pool lost tokens 1 and 2, and then the request was cancelled or failed."""
    buffer, cancelled = EventBuffer("r", ["s"]), End(reason)
    for index in range(3):
        buffer.put(TokenEvent("s", index, 4), 0)
    buffer.put(TokenEvent("s", 1, None, end=cancelled), 0)
    assert asyncio.run(buffer.take())[3:] == [TokenEvent("s", 3, None, end=cancelled)]
    assert not buffer.open
