"""What the pool loses, the gateway that submitted it puts back, with its tokens; others wait for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients import post, show_an_engine, wait_until
from pump import END, Pump, lose_all, submission, submit, take
from stack import Server, Stack

from gateway import put_back as put_back_module
from gateway.errors import ApiError
from gateway.leaving import Leaving
from gateway.put_back import PutBack
from gateway.reader import Reader
from services.config import Settings
from services.messages import Commit, Exchange, Logprobs, PromptLogprobs, Room
from services.pool.limits import Limits
from services.pool.pool import RequestPool


@dataclass
class Gateway:
    reader: Reader
    put_back: PutBack


@contextlib.asynccontextmanager
async def living(pool: RequestPool, name: str) -> AsyncIterator[Gateway]:
    """The parts of a gateway that read and put back, at work."""
    reader = Reader(pool, name)
    put_back = PutBack(pool, reader, Leaving(pool, name, reader.follows))
    tasks = [asyncio.create_task(reader.run()), asyncio.create_task(put_back.run())]
    yield Gateway(reader, put_back)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def gateway(pool: RequestPool) -> AsyncIterator[Gateway]:
    async with living(pool, "gw") as gateway:
        yield gateway


async def held(pool: RequestPool, *ids: str) -> list[list[int]]:
    """The tokens that the pool has, once it knows them all."""
    async with asyncio.timeout(10):
        while True:
            snapshots = await pool.listen("watcher", dict.fromkeys(ids, 0))
            if all(snapshot.known for snapshot in snapshots):
                return [snapshot.tokens for snapshot in snapshots]
            await asyncio.sleep(0.05)


async def test_it_goes_back_with_its_tokens(pool: RequestPool, gateway: Gateway) -> None:
    fields = {"tenant": "t", "idempotency_key": "k", "body": b"plan", "resumable": True}
    inbox, pump = await submit(pool, gateway.reader, "a", choices=2, logprobs=0, **fields), Pump(pool)
    one, two = Logprobs(-1.0, [], PromptLogprobs([-3.0], [4], [7], [-0.5])), Logprobs(-2.0, [])
    await pump.commit(Commit("a/0", 0, [5, 6], [one, two]), Commit("a/1", 0, [1], [one], end=END))
    assert len(await take(inbox, 4)) == 4
    group = await pool.group("a")
    await lose_all(pool)
    await gateway.reader.restart()
    assert await held(pool, "a/0", "a/1") == [[5, 6], [1]]
    assert await pool.group("a") == group
    assert (await pool.listen("watcher", {"a/0": 0}))[0].logprobs == [one, two]
    assert (await pool.submit(submission("b", **fields))).request == "a"
    # and it goes on from there
    await Pump(pool).commit(Commit("a/0", 2, [7], [one], end=END))
    assert await take(inbox, 2) == [(2, 7), (3, None)]


async def test_who_follows_elsewhere_waits_for_that(pool: RequestPool, gateway: Gateway) -> None:
    inbox, pump = await submit(pool, gateway.reader, "a"), Pump(pool)
    await pump.commit(Commit("a/0", 0, [5]))
    assert await take(inbox, 1) == [(0, 5)]
    async with living(pool, "gw2") as other:
        follower = other.reader.follow("a", ["a/0"])
        follower.submitted = True
        await other.reader.reread_requests(["a"])
        assert await take(follower, 1) == [(0, 5)]
        await lose_all(pool)
        await other.reader.restart()
        await gateway.reader.restart()
        assert await held(pool, "a/0") == [[5]]
        await Pump(pool).commit(Commit("a/0", 1, [6], end=END))
        assert await take(inbox, 2) == await take(follower, 2) == [(1, 6), (2, None)]


async def test_what_nobody_puts_back_fails(
    pool: RequestPool, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_back_module, "PATIENCE", 0)
    inbox = gateway.reader.follow("never", ["never/0"])
    inbox.submitted = True
    await gateway.reader.reread()
    with pytest.raises(ApiError, match="does not hold"):
        await asyncio.wait_for(inbox.take(), 10)


async def test_it_is_tried_again_while_the_pool_is_full(pool: RequestPool, gateway: Gateway) -> None:
    await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    await pool.submit(submission("first"))
    pool.limits = Limits(max_waiting=1)
    await gateway.reader.reread()
    await gateway.put_back.round()
    assert await pool.group("a") is None
    await pool.cancel("first")
    assert await held(pool, "a/0") == [[]]


async def test_what_no_pool_takes_is_given_up(pool: RequestPool, gateway: Gateway) -> None:
    inbox = await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    pool.limits = Limits(max_bytes=100)
    await gateway.reader.reread()
    with pytest.raises(ApiError, match="limit of 100"):
        await asyncio.wait_for(inbox.take(), 10)
    assert gateway.reader.lost == {}


async def test_it_waits_where_it_did(pool: RequestPool, gateway: Gateway) -> None:
    pool.limits = Limits(order="priority", ageing=60, ttft_target=10)
    for request, priority, ttft in (("plain", 0, 0.0), ("late", 1, 5.0), ("old", 1, 5.0)):
        inbox = await submit(pool, gateway.reader, request, priority=priority, ttft=ttft)
        inbox.since -= 100 if request == "old" else 0
    await lose_all(pool)
    await gateway.reader.reread()
    await held(pool, "plain/0", "late/0", "old/0")
    epoch = (await pool.acquire("seat", "test", 60)).epoch
    claims = (await pool.exchange(Exchange("seat", epoch, 1, [], Room(9, 999, 16)))).claims
    assert [(c.id, c.priority, c.ttft) for c in claims] == [("old/0", 1, 5), ("plain/0", 0, 10), ("late/0", 1, 5)]
    assert claims[0].waited - claims[2].waited > 50


async def test_a_key_that_is_another_s_by_now_does_not_stop_it(pool: RequestPool, gateway: Gateway) -> None:
    await submit(pool, gateway.reader, "a", idempotency_key="k")
    await lose_all(pool)
    await pool.submit(submission("b", idempotency_key="k"))
    await gateway.reader.reread()
    assert await held(pool, "a/0") == [[]]


async def test_nobody_follows_it_any_more(pool: RequestPool, gateway: Gateway) -> None:
    inbox = await submit(pool, gateway.reader, "a")
    await lose_all(pool)
    gateway.reader.unfollow(inbox)
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
        assert stack.call(stack.pool.overview()).figures is None  # it is another pool
        connection.close()
