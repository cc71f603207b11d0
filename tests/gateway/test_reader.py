"""The event stream is a hint, token storage the truth: whatever is lost on the way, each index comes once."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

import pytest

from gateway import reader as reader_module
from gateway.errors import ApiError
from gateway.heartbeat import Heartbeat
from gateway.inbox import Inbox
from gateway.reader import Reader
from services.messages import (
    Commit,
    End,
    EngineFigures,
    Exchange,
    NewSequence,
    Room,
    Snapshot,
    Submission,
    TokenEvent,
)
from services.pool.pool import RequestPool
from services.requests import FinishReason, SamplingParams
from services.telemetry import Counters

FIGURES = EngineFigures("tiny", 512, 25, 16, 278, "none")
END = End(FinishReason.LENGTH)


class Pump:
    """A seat without an engine: the test says which tokens are committed."""

    def __init__(self, pool: RequestPool) -> None:
        self.pool = pool
        self._call = 0

    async def commit(self, *commits: Commit) -> None:
        if self._call == 0:
            self._epoch = (await self.pool.acquire("seat", "test", 60)).epoch
            await self._exchange([])
        await self._exchange(list(commits))

    async def _exchange(self, commits: list[Commit]) -> None:
        self._call += 1
        figures = FIGURES if self._call == 1 else None
        reply = await self.pool.exchange(
            Exchange("seat", self._epoch, self._call, commits, Room(99, 9999, 16), figures=figures)
        )
        assert reply.owned


@pytest.fixture
async def pool(redis_url: str) -> AsyncIterator[RequestPool]:
    pool = RequestPool(redis_url, f"reader-{secrets.token_hex(4)}")
    await pool.connect()
    yield pool
    await pool.close()


@pytest.fixture
async def reader(pool: RequestPool) -> AsyncIterator[Reader]:
    reader = Reader(pool, "gw")
    running = asyncio.create_task(reader.run())
    yield reader
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def submit(pool: RequestPool, reader: Reader, request: str, choices: int = 1) -> Inbox:
    ids = [f"{request}/{i}" for i in range(choices)]
    inbox = reader.follow(ids)
    sequences = [NewSequence(id, [1, 2, 3], SamplingParams(max_new_tokens=10)) for id in ids]
    await pool.submit(Submission(request, "gw", sequences))
    inbox.submitted = True
    return inbox


async def take(inbox: Inbox, count: int) -> list[tuple[int, int | None]]:
    events: list[TokenEvent] = []
    async with asyncio.timeout(10):
        while len(events) < count:
            events += await inbox.take()
    return [(event.index, event.token) for event in events]


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
    await pool.attach("gw", {"a/0": 2})  # ... to here
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


async def test_a_request_that_the_pool_lost_fails(pool: RequestPool, reader: Reader) -> None:
    inbox = reader.follow(["never/0"])
    inbox.submitted = True
    await reader.reread()
    with pytest.raises(ApiError, match="does not hold"):
        await inbox.take()


async def test_a_request_on_its_way_is_not_taken_for_lost(pool: RequestPool, reader: Reader) -> None:
    inbox = reader.follow(["a/0"])
    await reader.reread()
    await pool.submit(Submission("a", "gw", [NewSequence("a/0", [1], SamplingParams(max_new_tokens=2))]))
    inbox.submitted = True
    await Pump(pool).commit(Commit("a/0", 0, [5], end=END))
    assert await take(inbox, 2) == [(0, 5), (1, None)]


async def test_two_followers_stand_at_different_places(pool: RequestPool, reader: Reader) -> None:
    first, pump = await submit(pool, reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [5, 6]))
    assert await take(first, 2) == [(0, 5), (1, 6)]
    second = reader.follow(["a/0"])
    second.submitted = True
    await reader.reread(["a/0"])
    await pump.commit(Commit("a/0", 2, [7], end=END))
    assert await take(first, 2) == [(2, 7), (3, None)]
    assert await take(second, 4) == [(0, 5), (1, 6), (2, 7), (3, None)]
    reader.unfollow(first, ["a/0"])
    reader.unfollow(second, ["a/0"])
    assert reader._inboxes == {}


def test_an_inbox_takes_each_index_once() -> None:
    inbox = Inbox(["s"])
    assert inbox.put(TokenEvent("s", 0, 4), 0)
    assert inbox.put(TokenEvent("s", 0, 4), 0)
    assert not inbox.put(TokenEvent("s", 2, 6), 0)
    inbox.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 1)
    inbox.catch_up(Snapshot("s", True, 3, 0, [4, 5, 6], end=END), 2)
    assert inbox.put(TokenEvent("s", 3, None, end=END), 0)
    events = asyncio.run(inbox.take())
    assert [(e.index, e.token) for e in events] == [(0, 4), (1, 5), (2, 6), (3, None)]
