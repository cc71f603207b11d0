"""Broadcast: messages to those who listen, on each kind of server; and the schedulers' frames through it."""

import asyncio
import contextlib

import pytest

from services import wire
from services.errors import PoolUnavailable
from services.live.frames import FRAMES, WATCHES, FrameBatch
from services.live.publisher import FramePublisher
from services.live.recorder import Recorder
from services.pool.broadcast import Broadcast, _translated
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from tests.services.scheduling.scripted import claim, scripted

CHANNEL = "news"


class Listener:
    """Collects the messages of a channel in the background."""

    def __init__(self, broadcast, channel=CHANNEL):
        self.heard = []
        self.fresh = asyncio.Event()
        self.task = asyncio.create_task(self._listen(broadcast, channel))

    async def _listen(self, broadcast, channel):
        async for message in broadcast.listen(channel):
            self.heard.append(message)
            self.fresh.set()

    async def next(self):
        await asyncio.wait_for(self.fresh.wait(), 20)
        self.fresh.clear()
        return self.heard[-1]

    async def close(self):
        self.task.cancel()
        await asyncio.wait({self.task})


async def until(condition):
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true within 20 s")


async def subscribed(pool, channel=CHANNEL, count=1):
    """Wait until so many listen to the channel."""

    async def listened():
        return (await pool._server.command("PUBSUB", "NUMSUB", pool._prefix + channel))[1] == count

    await until(listened)


async def watched(recorder, on):
    """Wait until the recorder is on or off."""

    async def switched():
        return recorder.watched == on

    await until(switched)


@pytest.fixture
async def broadcasts(server_pools):
    """A pool, and a function that opens its channels."""
    opened = []
    pool = await server_pools()

    def open(other=None):
        opened.append((other or pool).broadcast())
        return opened[-1]

    yield pool, open
    for broadcast in opened:
        await broadcast.close()


async def test_all_that_listen_hear_it_and_no_other_pool(broadcasts, server_pools):
    pool, open = broadcasts
    own, other = [Listener(open()) for _ in range(2)], Listener(open(await server_pools()))
    await subscribed(pool, count=2)
    sender = open()
    await sender.publish(CHANNEL, b"\x00one")
    assert [await listener.next() for listener in own] == [b"\x00one"] * 2
    await own[0].close()
    await subscribed(pool, count=1)
    await sender.publish(CHANNEL, b"two")
    assert await own[1].next() == b"two"
    assert (own[0].heard, other.heard) == ([b"\x00one"], [])
    for listener in (own[1], other):
        await listener.close()


async def test_a_silent_connection_is_asked_whether_it_lives(broadcasts, monkeypatch):
    pool, open = broadcasts
    monkeypatch.setattr("services.pool.broadcast.SILENCE", 0.02)
    listener = Listener(open())
    await subscribed(pool)

    async def asked():
        return b"cmd=ping" in await pool._server.command("CLIENT", "LIST", "TYPE", "pubsub")

    await until(asked)
    await open().publish(CHANNEL, b"still here")
    assert await listener.next() == b"still here"
    await listener.close()


async def test_a_dead_server_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("services.pool.broadcast.SILENCE", 0.02)

    async def mute(reader, writer):  # accepts a subscription and says nothing more
        subscribed = b"*3\r\n$9\r\nsubscribe\r\n$6\r\np:%b\r\n:1\r\n" % CHANNEL.encode()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(1000):
                if b"SUBSCRIBE" in data:
                    writer.write(subscribed)
                elif b"CLIENT" in data:
                    writer.write(b"+OK\r\n" * data.count(b"CLIENT"))
        writer.close()

    async with await asyncio.start_unix_server(mute, tmp_path / "s"):
        broadcast = Broadcast(f"unix://{tmp_path}/s", "p:")
        with pytest.raises(PoolUnavailable, match="silent"):
            await anext(broadcast.listen(CHANNEL))
        await broadcast.close()


async def test_a_server_that_goes_ends_the_listening_and_refuses_messages(tmp_path):
    server = PoolServer(choose_server(), tmp_path)
    pool = RequestPool(await server.start())
    broadcast = pool.broadcast()
    listener = Listener(broadcast)
    await subscribed(pool)
    await server.stop()
    await asyncio.wait({listener.task}, timeout=20)
    assert isinstance(listener.task.exception(), PoolUnavailable)
    with pytest.raises(PoolUnavailable):
        await broadcast.publish(CHANNEL, b"")
    await broadcast.close()
    await pool.close()


async def test_schedulers_publish_while_they_are_asked_to(broadcasts):
    pool, open = broadcasts
    script = scripted()
    recorder = Recorder("c/0", "e1", script.scheduler)
    script.scheduler.add([claim("a", 0, 3, 9)])
    publisher = FramePublisher(open(), recorder)
    publishing = asyncio.create_task(publisher.run())
    gateway, listener = open(), Listener(open(), FRAMES)
    await subscribed(pool, FRAMES)
    await subscribed(pool, WATCHES)
    for asked in range(3):  # it begins without being asked
        if asked:
            await gateway.publish(WATCHES, b"")
        await watched(recorder, True)
        iteration = script.select()
        recorder.started(iteration)
        result = script.result_of(iteration)
        script.scheduler.update(result)
        recorder.finished(iteration, result, 0.01)
        batch = wire.unpack(FrameBatch, await listener.next())
        assert (batch.engine, batch.epoch, [request.id for request in batch.requests]) == ("c/0", "e1", ["a"])
        publisher._until = 0.0  # as if nobody had asked for long
        await watched(recorder, False)
    publishing.cancel()
    await asyncio.wait({publishing})
    await listener.close()


def test_an_error_without_words_is_named():
    with pytest.raises(PoolUnavailable, match="frames: TimeoutError"), _translated("frames"):
        raise TimeoutError
