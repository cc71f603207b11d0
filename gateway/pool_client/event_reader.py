"""EventReader: reads this gateway's event stream and distributes the events to the buffers of followed requests.

The event stream is a hint; the token storage is authoritative. After a gap, after an outage of the pool, when the pool
had forgotten this gateway, and for sequences without events for long, the gateway listens to the sequences again and
reads them from the next index. After an outage it also reads the stream from its start, because the stream may be
shorter than it was.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable

from gateway.pool_client.event_buffer import EventBuffer
from services.errors import PoolUnavailable
from services.messages import Snapshot, Submission, TokenEvent
from services.pool.pool import RequestPool

BLOCK = 1.0  # seconds a read waits for events
MANY = 8  # streams with events in one read, from which on the next read waits for `PAUSE`
PAUSE = 0.01  # seconds, too short to be seen. Under load several tokens of a stream leave in one write
SILENCE = 10.0  # seconds without an event after which a sequence is read from token storage
LISTEN_AT_ONCE = 256  # sequences per script call, so that it does not block the pool for long
DISTRIBUTE_AT_ONCE = 1024  # tokens of snapshots, one or two milliseconds, before other tasks run
PATIENCE = 5.0  # seconds after an outage within which gateways put back what the pool lost
FIRST_RETRY, LAST_RETRY = 0.05, 1.0  # seconds between tries while the pool is unavailable

log = logging.getLogger(__name__)


class EventReader:
    """`lost`: followed requests that the pool does not know, with the time (loop's clock) at which this was noticed."""

    def __init__(self, pool: RequestPool, gateway: str) -> None:
        self._pool = pool
        self._gateway = gateway
        self._buffers: dict[str, list[EventBuffer]] = {}  # by sequence
        self._from_start = True  # the next read begins at the stream's start: it is a new stream
        self.pool_unavailable = False
        self._returned = -math.inf  # when the pool last became available again
        self.lost: dict[str, float] = {}
        self.anything_lost = asyncio.Event()

    def follow(self, request: str, ids: Iterable[str], submission: Submission | None = None) -> EventBuffer:
        """A buffer for a group's events from now on. To be called before the submit, so that no event is missed."""
        buffer = EventBuffer(request, ids, submission, self._now())
        for sequence in buffer.tokens:
            self._buffers.setdefault(sequence, []).append(buffer)
        return buffer

    def unfollow(self, buffer: EventBuffer) -> None:
        for sequence in buffer.tokens:
            buffers = self._buffers.get(sequence, [])
            if buffer in buffers:
                buffers.remove(buffer)
            if not buffers:
                self._buffers.pop(sequence, None)
        if not self.follows(buffer.request):
            self._found(buffer.request)

    def followers(self, request: str) -> list[EventBuffer]:
        return self._buffers.get(f"{request}/0", [])

    def follows(self, request: str) -> bool:
        return f"{request}/0" in self._buffers

    @property
    def requests(self) -> int:
        """The number of requests that are followed at this gateway."""
        return sum(sequence.endswith("/0") for sequence in self._buffers)

    @property
    def settled(self) -> bool:
        """Whether no gateway is about to put back a request that the pool does not know."""
        return not self.pool_unavailable and self._now() - self._returned > PATIENCE

    async def run(self) -> None:
        """Read and distribute events until cancelled."""
        cursor, retry = "0", FIRST_RETRY
        checked = self._now()
        while True:
            try:
                after, self._from_start = "0" if self._from_start else cursor, False
                cursor, events = await self._pool.read_events(self._gateway, after, BLOCK)
                gaps = self._distribute(events)
                if self.pool_unavailable:
                    await self.reread()
                    self.pool_unavailable, self._returned = False, self._now()
                elif gaps:
                    await self.reread(gaps)
                if self._now() - checked > SILENCE:
                    checked = self._now()
                    await self.reread(self._silent())
                retry = FIRST_RETRY
                if len(events) >= MANY and len({event.id for event in events}) >= MANY:
                    await self._pause()
            except PoolUnavailable as error:
                self._lose(error)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY)

    async def _pause(self) -> None:
        await asyncio.sleep(PAUSE)

    def _lose(self, error: PoolUnavailable) -> None:
        if not self.pool_unavailable:
            log.warning("the pool is unavailable: %s", error)
        self.pool_unavailable = self._from_start = True
        self.lost.clear()
        self.anything_lost.clear()

    async def restart(self) -> None:
        """Read the stream and all sequences from the start: the pool had forgotten this gateway or cut its stream.

        Raises PoolUnavailable.
        """
        self._from_start = True
        await self.reread()

    async def reread(self, ids: Iterable[str] | None = None) -> None:
        """Listen again to `ids`, or to all followed sequences, and add what token storage has of them."""
        wanted = self._from_indices(self._buffers if ids is None else ids)
        async for snapshot in self._listen(wanted):
            self._catch_up(snapshot, self._buffers.get(snapshot.id, ()))

    async def catch_up(self, buffer: EventBuffer) -> None:
        """Listen for a follower of a request that the pool has, and add what token storage has beyond the follower's
        events. The other followers of the request have these already. Raises PoolUnavailable."""
        async for snapshot in self._listen(dict(buffer.next)):
            buffer.submitted = True
            self._catch_up(snapshot, [buffer])
        if buffer.behind:
            await self.reread(buffer.behind)

    async def _listen(self, wanted: dict[str, int]) -> AsyncIterator[Snapshot]:
        """What token storage has of these sequences from these indices on. Other tasks run in between."""
        items, distributed = list(wanted.items()), 0
        for start in range(0, len(items), LISTEN_AT_ONCE):
            for snapshot in await self._pool.listen(self._gateway, dict(items[start : start + LISTEN_AT_ONCE])):
                yield snapshot
                distributed += len(snapshot.tokens)
                if distributed > DISTRIBUTE_AT_ONCE:
                    distributed = 0
                    await asyncio.sleep(0)

    async def reread_requests(self, requests: Iterable[str]) -> None:
        """The same for all sequences of these requests."""
        await self.reread({id for request in requests for buffer in self.followers(request) for id in buffer.next})

    def give_up(self, request: str, error: Exception) -> None:
        """Fail the followers of a lost request."""
        self._found(request)
        for buffer in self.followers(request):
            buffer.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all followers: nothing is read any more."""
        for buffers in self._buffers.values():
            for buffer in buffers:
                buffer.fail(error)

    def _distribute(self, events: list[TokenEvent]) -> set[str]:
        """Returns the ids of sequences with missing events."""
        now, gaps = self._now(), set[str]()
        for event in events:
            for buffer in self._buffers.get(event.id, ()):
                if not buffer.put(event, now):
                    (gaps if buffer.submitted else buffer.behind).add(event.id)
        return gaps

    def _from_indices(self, ids: Iterable[str]) -> dict[str, int]:
        """The index from which to read each of these sequences that is submitted and unfinished."""
        wanted = {}
        for sequence in ids:
            standing = [b.next[sequence] for b in self._buffers.get(sequence, ()) if b.submitted and sequence in b.next]
            if standing:
                wanted[sequence] = min(standing)
        return wanted

    def _catch_up(self, snapshot: Snapshot, buffers: Iterable[EventBuffer]) -> None:
        for buffer in buffers:
            if snapshot.known:
                buffer.catch_up(snapshot, self._now())
                self._found(buffer.request)
            elif buffer.submitted:
                self.lost.setdefault(buffer.request, self._now())
                self.anything_lost.set()

    def _found(self, request: str) -> None:
        self.lost.pop(request, None)
        if not self.lost:
            self.anything_lost.clear()

    def _silent(self) -> list[str]:
        before = self._now() - SILENCE
        return [s for s, buffers in self._buffers.items() if any(b.arrived < before for b in buffers)]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
