"""The gateway that submitted a lost request puts it back with its tokens; other gateways wait for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients import post, show_an_engine
from committer import END, Committer, lose_all, submission, submit, take
from stack import Server, Stack
from waiting import wait_until

from gateway.errors import ApiError
from gateway.pool_client import recovery as recovery_module
from gateway.pool_client.event_reader import EventReader
from gateway.pool_client.following import AbandonedRequests
from gateway.pool_client.recovery import Recovery
from services.messages import Commit, Exchange, Logprobs, PromptLogprobs, Room
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.settings.settings import Settings


@dataclass
class Gateway:
    reader: EventReader
    recovery: Recovery


@contextlib.asynccontextmanager
async def living(pool: RequestPool, name: str) -> AsyncIterator[Gateway]:
    """The event reader and the recovery of a gateway, running."""
    reader = EventReader(pool, name)
    recovery = Recovery(pool, reader, AbandonedRequests(pool, name, reader.follows))
    tasks = [asyncio.create_task(reader.run()), asyncio.create_task(recovery.run())]
    yield Gateway(reader, recovery)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def gateway(pool: RequestPool) -> AsyncIterator[Gateway]:
    async with living(pool, "gw") as gateway:
        yield gateway


async def held(pool: RequestPool, *ids: str) -> list[list[int]]:
    """The tokens of these sequences, when the pool knows all of them."""
    async with asyncio.timeout(10):
        while True:
            snapshots = await pool.listen("watcher", dict.fromkeys(ids, 0))
            if all(snapshot.known for snapshot in snapshots):
                return [snapshot.tokens for snapshot in snapshots]
            await asyncio.sleep(0.05)


async def test_a_request_is_put_back_with_its_tokens(pool: RequestPool, gateway: Gateway) -> None:
    fields = {"tenant": "t", "idempotency_key": "k", "body": b"plan", "resumable": True}
    buffer, committer = await submit(pool, gateway.reader, "a", choices=2, logprobs=0, **fields), Committer(pool)
    one, two = Logprobs(-1.0, [], PromptLogprobs([-3.0], [4], [7], [-0.5])), Logprobs(-2.0, [])
    await committer.commit(Commit("a/0", 0, [5, 6], [one, two]), Commit("a/1", 0, [1], [one], end=END))
    assert len(await take(buffer, 4)) == 4
    group = await pool.group("a")
    await lose_all(pool)
    await gateway.reader.restart()
    assert await held(pool, "a/0", "a/1") == [[5, 6], [1]]
    assert await pool.group("a") == group
    assert (await pool.listen("watcher", {"a/0": 0}))[0].logprobs == [one, two]
    assert (await pool.submit(submission("b", **fields))).request == "a"
    # and the request continues from there
    await Committer(pool).commit(Commit("a/0", 2, [7], [one], end=END))
    assert await take(buffer, 2) == [(2, 7), (3, None)]


async def test_followers_at_other_gateways_wait_for_it(pool: RequestPool, gateway: Gateway) -> None:
    buffer, committer = await submit(pool, gateway.reader, "a"), Committer(pool)
    await committer.commit(Commit("a/0", 0, [5]))
    assert await take(buffer, 1) == [(0, 5)]
    async with living(pool, "gw2") as other:
        follower = other.reader.follow("a", ["a/0"])
        follower.submitted = True
        await other.reader.reread_requests(["a"])
        assert await take(follower, 1) == [(0, 5)]
        await lose_all(pool)
        await other.reader.restart()
        await gateway.reader.restart()
        assert await held(pool, "a/0") == [[5]]
        await Committer(pool).commit(Commit("a/0", 1, [6], end=END))
        assert await take(buffer, 2) == await take(follower, 2) == [(1, 6), (2, None)]


async def test_a_request_that_is_not_put_back_fails(
    pool: RequestPool, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "PATIENCE", 0)
    buffer = gateway.reader.follow("never", ["never/0"])
    buffer.submitted = True
    await gateway.reader.reread()
    with pytest.raises(ApiError, match="does not hold"):
        await asyncio.wait_for(buffer.take(), 10)


async def test_putting_back_is_retried_while_the_pool_is_full(pool: RequestPool, gateway: Gateway) -> None:
    await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    await pool.submit(submission("first"))
    pool.limits = Limits(max_waiting=1)
    await gateway.reader.reread()
    await gateway.recovery.round()
    assert await pool.group("a") is None
    await pool.cancel("first")
    assert await held(pool, "a/0") == [[]]


async def test_a_request_that_no_pool_accepts_fails(pool: RequestPool, gateway: Gateway) -> None:
    buffer = await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    pool.limits = Limits(max_bytes=100)
    await gateway.reader.reread()
    with pytest.raises(ApiError, match="limit of 100"):
        await asyncio.wait_for(buffer.take(), 10)
    assert gateway.reader.lost == {}


async def test_a_request_keeps_its_place_in_the_queue(pool: RequestPool, gateway: Gateway) -> None:
    pool.limits = Limits(order="priority", ageing=60, ttft_target=10)
    for request, priority, ttft in (("plain", 0, 0.0), ("late", 1, 5.0), ("old", 1, 5.0)):
        buffer = await submit(pool, gateway.reader, request, priority=priority, ttft=ttft)
        buffer.since -= 100 if request == "old" else 0
    await lose_all(pool)
    await gateway.reader.reread()
    await held(pool, "plain/0", "late/0", "old/0")
    epoch = (await pool.acquire("seat", "test", 60)).epoch
    claims = (await pool.exchange(Exchange("seat", epoch, 1, [], Room(9, 999, 16)))).claims
    assert [(c.id, c.priority, c.ttft) for c in claims] == [("old/0", 1, 5), ("plain/0", 0, 10), ("late/0", 1, 5)]
    assert claims[0].waited - claims[2].waited > 50


async def test_a_reused_idempotency_key_does_not_prevent_it(pool: RequestPool, gateway: Gateway) -> None:
    await submit(pool, gateway.reader, "a", idempotency_key="k")
    await lose_all(pool)
    await pool.submit(submission("b", idempotency_key="k"))
    await gateway.reader.reread()
    assert await held(pool, "a/0") == [[]]


async def test_a_request_without_followers_is_not_put_back(pool: RequestPool, gateway: Gateway) -> None:
    buffer = await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    gateway.reader.unfollow(buffer)
    await gateway.reader.reread()
    assert gateway.reader.lost == {}


def test_a_server_that_comes_back_empty(tmp_path: Path, tiny_folder: Path) -> None:
    with Server(tmp_path) as server, Stack(server.url, "p", tiny_folder, Settings(), engine=False) as stack:
        stack.call(show_an_engine(stack))
        connection = post(stack, {"prompt": "hello", "n": 2, "stream": True})
        wait_until(lambda: stack.call(stack.pool.overview()).waiting == 2)
        server.call(server.server.stop())
        for file in tmp_path.rglob("appendonly*.*"):  # one file, or from Redis 7 on several in a folder
            file.unlink()
        server.call(server.server.start())
        wait_until(lambda: stack.call(stack.pool.overview()).waiting == 2)
        assert stack.call(stack.pool.overview()).figures is None  # it is a new pool
        connection.close()
