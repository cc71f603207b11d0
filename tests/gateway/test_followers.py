"""Reads of stored requests occupy neither the event loop nor the pool, however many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from committer import END, Committer, submission, submit, take

from gateway.answer.items import Transcript
from gateway.answer.plan import AnswerKind, Plan
from gateway.errors import ApiError, Kind
from gateway.executor import FairExecutor
from gateway.openai.events import ChunkWriter
from gateway.pool_client import following
from gateway.pool_client.event_reader import EventBuffer, EventReader
from gateway.pool_client.following import AbandonedRequests, Generations
from gateway.pool_client.request_record import RequestRecords
from services.messages import Commit, Logprobs, Snapshot
from services.metrics import Counters
from services.pool import packing
from services.pool import pool as pool_module
from services.pool.pool import RequestPool

BODY = Plan(AnswerKind.COMPLETION, 0, "digest", 1, 1, 3, 10).pack()


class Held:
    """Reads of tokens of the request `a` wait until `go`."""

    def __init__(self, pool: RequestPool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.came = asyncio.Event(), asyncio.Event()
        self.reading = self.most = 0
        self._listen = pool.listen
        monkeypatch.setattr(pool, "listen", self)

    async def __call__(self, gateway: str, wanted: dict[str, int]) -> list[Snapshot]:
        if "a/0" in wanted:
            self.reading += 1
            self.most = max(self.most, self.reading)
            self.came.set()
            await self.go.wait()
            self.reading -= 1
        return await self._listen(gateway, wanted)


@pytest.fixture
async def generations(pool: RequestPool) -> AsyncIterator[Generations]:
    reader, executor = EventReader(pool, "gw"), FairExecutor()
    abandoned = AbandonedRequests(pool, "gw", reader.follows)
    for tenant in "ab":
        await pool.submit(submission(tenant, tenant=tenant, background=True, body=BODY))
    await Committer(pool).commit(*(Commit(f"{tenant}/0", 0, [7], end=END) for tenant in "ab"))
    records = RequestRecords(None, log_requests=False, model="tiny", gateway="gateway")
    yield Generations(pool, reader, abandoned, Counters(), executor, records)
    await abandoned.stop()
    executor.close()


async def follow(generations: Generations, request: str) -> None:
    with await generations.follow(request, request, None):
        pass


async def test_the_concurrent_reads_of_a_tenant_are_limited(
    generations: Generations, pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(pool, monkeypatch)
    async with asyncio.timeout(20):
        tasks = [asyncio.create_task(follow(generations, "a")) for _ in range(4 * following.AT_ONCE)]
        await held.came.wait()
        for _ in range(10):
            await follow(generations, "b")
        held.go.set()
        await asyncio.gather(*tasks)
    assert 0 < held.most <= following.AT_ONCE


async def test_too_many_waiting_reads_are_refused(
    generations: Generations, pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_WAITING", 1)
    held = Held(pool, monkeypatch)
    async with asyncio.timeout(20):
        first = asyncio.create_task(follow(generations, "a"))
        await held.came.wait()
        with pytest.raises(ApiError) as refused:
            await follow(generations, "a")
        assert refused.value.kind is Kind.TOO_MANY_FOLLOWERS
        assert refused.value.retry_after
        await follow(generations, "b")
        held.go.set()
        await first
        await follow(generations, "a")


async def test_only_the_last_follower_of_an_unfinished_request_abandons_it(
    generations: Generations, pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def unlisten(gateway: str, request: str) -> None:
        told.append(request)

    monkeypatch.setattr(pool, "unlisten", unlisten)
    monkeypatch.setattr(following, "AT_ONCE", 1)  # which a follower of a request without tokens gives back at once
    monkeypatch.setattr(following, "MOST_FOLLOWERS", 2)
    await pool.submit(submission("c", tenant="a", background=True, body=BODY))
    async with asyncio.timeout(20):
        first, second = [await generations.follow("c", "a", None) for _ in range(2)]
        for tenant, kind in (("a", Kind.TOO_MANY_FOLLOWERS), ("b", Kind.REQUEST_NOT_FOUND)):
            with pytest.raises(ApiError) as refused:
                await generations.follow("c", tenant, None)
            assert refused.value.kind is kind
        for generation, expected in ((first, []), (second, ["c"])):
            generation.close()
            await generations._abandoned.settled("c")
            assert told == expected
        await follow(generations, "a")
        await generations._abandoned.settled("a")
        (await generations.follow("c", "a", None)).close()
        generations._reader.follow("c", ["c/0"])  # before it is abandoned
        await generations._abandoned.settled("c")
        assert told == ["c"]


async def test_only_a_new_follower_reads_from_storage(pool: RequestPool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EventReader(pool, "gw")
    first = await submit(pool, reader, "a")
    await Committer(pool).commit(Commit("a/0", 0, [5, 6]))
    await reader.reread(["a/0"])
    read: list[EventBuffer] = []
    catch_up = EventBuffer.catch_up
    monkeypatch.setattr(EventBuffer, "catch_up", lambda buffer, *args: (read.append(buffer), catch_up(buffer, *args)))
    second = reader.follow("a", ["a/0"])
    await reader.catch_up(second)
    assert await take(second, 2) == await take(first, 2) == [(0, 5), (1, 6)]
    assert read == [second]
    await reader.catch_up(reader.follow("unknown", ["unknown/0"]))
    assert list(reader.lost) == ["unknown"]


async def test_tokens_committed_while_a_follower_reads_reach_it(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event arrives before the tokens that were read, and no later event reveals the gap."""
    reader, committer = EventReader(pool, "gw"), Committer(pool)
    await submit(pool, reader, "a")
    await committer.commit(Commit("a/0", 0, [5]))
    late, listen = reader.follow("a", ["a/0"]), pool.listen

    async def overtaken(gateway: str, wanted: dict[str, int]) -> list[Snapshot]:
        found = await listen(gateway, wanted)
        if wanted == {"a/0": 0} and not late.submitted:
            await committer.commit(Commit("a/0", 1, [6], end=END))
            _, events = await pool.read_events("gw", "0", 1.0)
            reader._distribute(events[1:])
        return found

    monkeypatch.setattr(pool, "listen", overtaken)
    await reader.catch_up(late)
    assert await take(late, 3) == [(0, 5), (1, 6), (2, None)]


def threads_of(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """The names of the threads that call this method, appended at each call."""
    names: list[str] = []
    function: Callable[..., Any] = getattr(owner, name)

    def called(*args: Any) -> Any:
        names.append(threading.current_thread().name.partition("_")[0])
        return function(*args)

    monkeypatch.setattr(owner, name, called)
    return names


def test_a_long_stored_stream_is_written_off_the_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"prompt": "hello", "n": 4, "max_tokens": 40, "logprobs": 5}
    said = http.post("/v1/completions", json=body, headers={"Orca-Resumable": "true"}).json()
    names = threads_of(monkeypatch, ChunkWriter, "write")
    frames = http.get(f"/v1/streams/{said['id']}").text
    assert frames.endswith("data: [DONE]\n\n")
    assert names == ["executor"]


async def test_a_long_reply_of_the_pool_is_unpacked_off_the_loop(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = EventReader(pool, "gw")
    await submit(pool, reader, "a", logprobs=20)
    logprobs = Logprobs(-1.0, [(i, -1.0) for i in range(20)])
    await Committer(pool).commit(Commit("a/0", 0, [5], [logprobs]))
    names = threads_of(monkeypatch, packing, "read_snapshots")
    await reader.reread(["a/0"])
    monkeypatch.setattr(pool_module, "LONG_REPLY", 100)
    await reader.reread(["a/0"])
    second = reader.follow("a", ["a/0"])
    await reader.catch_up(second)
    assert names == ["MainThread", "MainThread", "asyncio"]
    assert (await second.take())[0].logprobs == logprobs


def test_a_long_response_is_read_off_the_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"input": "hi", "max_output_tokens": 100, "ignore_eos": True, "top_logprobs": 5}
    made = http.post("/v1/responses", json=body | {"include": ["message.output_text.logprobs"]}).json()
    names = threads_of(monkeypatch, Transcript, "add_all")
    assert http.get(f"/v1/responses/{made['id']}").json() == made
    assert names == ["executor"]
