"""LiveFeed: one subscription to the schedulers' frames for all watchers of this gateway, while there are any. A Watcher
is the queue of one reader, which loses batches if it is slow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import orjson

from gateway.errors import ApiError, GatewayStops, Kind
from gateway.gateway import GatewayProcess
from services import wire
from services.background import keep_running, start
from services.errors import PoolUnavailable, Unreadable
from services.live.frames import END, FRAMES, WATCHES, FrameBatch
from services.live.state import RecentOverviews
from services.overview import Overview, combined
from services.pool.broadcast import Broadcast

MOST_BATCHES = 64  # that wait for a reader: 5 s of one engine
MOST_BYTES = 4 << 20
MOST_WATCHERS = 64  # of a gateway
MOST_OF_TENANT = 32
PERIOD = 1.0  # seconds between states
RETRY = 1.0  # seconds before it subscribes again

log = logging.getLogger(__name__)


class LiveFeed:
    """Bound to the event loop it is used in. Without a watcher it does nothing."""

    def __init__(self, gateway: GatewayProcess, demo: bool) -> None:
        self._gateway = gateway
        self._broadcasts: list[Broadcast] = []  # of the models that there were when the first watcher came
        self._demo = demo
        self._watchers: list[Watcher] = []
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._recent = RecentOverviews()
        self._epochs: dict[str, str] = {}  # of the last frames of each engine
        self._stopped = False

    def open(self, tenant: str) -> Watcher:
        """Add a watcher, which the caller closes. Raises ApiError if there are too many, GatewayStops."""
        if self._stopped:
            raise GatewayStops
        own = sum(watcher.tenant == tenant for watcher in self._watchers)
        if own >= MOST_OF_TENANT or len(self._watchers) >= MOST_WATCHERS:
            held, most, whose = len(self._watchers), MOST_WATCHERS, "gateway"
            if own >= MOST_OF_TENANT:
                held, most, whose = own, MOST_OF_TENANT, "API key's tenant"
            raise ApiError(Kind.TOO_MANY_WATCHERS, f"{held} live feeds are open for this {whose}, {most} are allowed.")
        watcher = Watcher(tenant)
        self._watchers.append(watcher)
        if not self._tasks:
            pools = [shard.pool for model in self._gateway.all for shard in model.shards.all]
            self._broadcasts = [pool.broadcast() for pool in pools]
            parts: list[Callable[[], Awaitable[None]]] = [self._tick]
            parts += [partial(self._listen, broadcast) for broadcast in self._broadcasts]
            self._tasks = tuple(start(keep_running(part), "the live feed") for part in parts)
        elif state := self._state():
            watcher.put_state(state)
        return watcher

    def close(self, watcher: Watcher) -> None:
        """Remove a watcher. When the last one goes, the subscription ends."""
        self._watchers.remove(watcher)
        if not self._watchers:
            self._rest()

    async def stop(self) -> None:
        """End all feeds."""
        self._stopped = True
        for watcher in self._watchers:
            watcher.end()
        self._rest()
        for broadcast in self._broadcasts:
            await broadcast.close()

    def _rest(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = ()
        self._recent.clear()
        self._epochs.clear()

    async def _listen(self, broadcast: Broadcast) -> None:
        while True:
            try:
                async for message in broadcast.listen(FRAMES):
                    self._distribute(message)
            except PoolUnavailable as error:
                log.debug("no frames: %s", error)
            await asyncio.sleep(RETRY)

    def _distribute(self, message: bytes) -> None:
        if message == END:
            for watcher in self._watchers:
                watcher.end()
            return
        try:
            batch = wire.unpack(FrameBatch, message)
        except Unreadable as error:  # of another build
            log.debug("%s", error)
            return
        self._epochs[batch.engine] = batch.epoch
        events: dict[str, bytes] = {}  # by tenant
        for watcher in self._watchers:
            tenant = watcher.tenant
            if tenant not in events:
                events[tenant] = event("iterations", batch.json(tenant))
            watcher.put(events[tenant])

    async def _tick(self) -> None:
        """Each second, ask the schedulers for frames and send the state."""
        while True:
            await asyncio.gather(*(_ask(broadcast) for broadcast in self._broadcasts))
            if state := self._state():
                for watcher in self._watchers:
                    watcher.put_state(state)
            await asyncio.sleep(PERIOD)

    def _state(self) -> bytes:
        """The event of the state as of the last heartbeat; nothing while all pools are away."""
        models: dict[str, Overview] = {}
        for each in self._gateway.all:
            with contextlib.suppress(PoolUnavailable):
                models[each.model.name] = each.shards.overview()
        if not models:
            return b""
        read_at = max(each.shards.read_at for each in self._gateway.all)
        self._recent.add(combined(list(models.values())), read_at)
        return event("state", orjson.dumps(self._recent.state(time.time(), models, self._demo, self._epochs)))


async def _ask(broadcast: Broadcast) -> None:
    """Ask the schedulers of a pool for frames."""
    try:
        await broadcast.publish(WATCHES, b"")
    except PoolUnavailable as error:
        log.debug("no scheduler is asked for frames: %s", error)


class Watcher:
    """Takes server-sent events for a reader of `tenant`. Of events that replace each other it keeps the last one."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.ended = False
        self._batches: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0  # batches that were dropped since the reader last took any
        self._state = b""
        self._fresh = asyncio.Event()

    def put(self, batch: bytes) -> None:
        """Add an event. The oldest ones are dropped if there are too many."""
        self._batches.append(batch)
        self._bytes += len(batch)
        while len(self._batches) > MOST_BATCHES or (self._bytes > MOST_BYTES and len(self._batches) > 1):
            self._bytes -= len(self._batches.popleft())
            self._lost += 1
        self._fresh.set()

    def put_state(self, state: bytes) -> None:
        """Add an event that replaces the one before, if that was not taken."""
        self._state = state
        self._fresh.set()

    def end(self) -> None:
        """End the feed once the reader has taken what waits."""
        self.ended = True
        self._fresh.set()

    async def take(self) -> bytes:
        """Return the events that wait, at least one; nothing if the feed has ended."""
        await self._fresh.wait()
        if not self.ended:
            self._fresh.clear()
        lost = event("lost", orjson.dumps({"batches": self._lost})) if self._lost else b""
        taken = b"".join((lost, *self._batches, self._state))
        self._batches.clear()
        self._bytes = self._lost = 0
        self._state = b""
        return taken


def event(name: str, data: bytes) -> bytes:
    """A server-sent event. `data` is JSON, which has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
