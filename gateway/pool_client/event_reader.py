"""EventReader: reads this gateway's event stream and distributes the events to the `EventBuffer` of each followed
request, which holds each index of each sequence once until the follower takes it.

The event stream is a hint; the token storage is authoritative. After a gap, after an outage of the pool, when the pool
had forgotten this gateway, and for sequences without events for long, the gateway listens to the sequences again and
reads them from the next index. After an outage it also reads the stream from its start, because the stream may be
shorter than it was.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter as Multiset
from collections.abc import AsyncIterator, Iterable

from gateway.errors import ApiError, Kind
from services.errors import PoolUnavailable
from services.messages import Logprobs, Snapshot, Submission, TokenEvent
from services.pool.pool import RequestPool
from services.requests import FinishReason

UNREAD = 4096  # maximum number of buffered events per sequence
TAKE_FASTER = "The stream was not read for too long; it can be read again from where it broke off."
BLOCK = 1.0  # seconds a read waits for events
MANY = 8  # streams with events in one read, from which on the next read waits for `PAUSE`
PAUSE = 0.01  # seconds, too short to be seen. Under load several tokens of a stream leave in one write
SILENCE = 10.0  # seconds without an event after which a sequence is read from token storage
LISTEN_AT_ONCE = 256  # sequences per script call, so that it does not block the pool for long
DISTRIBUTE_AT_ONCE = 1024  # tokens of snapshots, one or two milliseconds, before other tasks run
PATIENCE = 5.0  # seconds after an outage within which gateways put back what the pool lost
FIRST_RETRY, LAST_RETRY = 0.05, 0.2  # seconds between tries while the pool is unavailable

log = logging.getLogger(__name__)


class EventReader:
    """Reads the event stream of one gateway in one pool. `lost`: followed requests that the pool does not know, with
    the time (loop's clock) at which this was noticed."""

    def __init__(self, pool: RequestPool, gateway: str) -> None:
        self._pool = pool
        self._gateway = gateway
        self._buffers: dict[str, list[EventBuffer]] = {}  # by sequence
        self._from_start = True  # the next read begins at the stream's start: it is a new stream
        self.pool_unavailable = False
        self._returned = -math.inf  # when the pool last became available again
        self.lost: dict[str, float] = {}
        self.anything_lost = asyncio.Event()
        self._over: Exception | None = None  # why nothing is read any more

    def follow(self, request: str, ids: Iterable[str], submission: Submission | None = None) -> EventBuffer:
        """A buffer for a group's events from now on. To be called before the submit, so that no event is missed."""
        buffer = EventBuffer(request, ids, submission, self._now())
        for sequence in buffer.tokens:
            self._buffers.setdefault(sequence, []).append(buffer)
        if self._over:
            buffer.fail(self._over)
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

    def adapted(self) -> Multiset[str]:
        """The number of requests that were submitted here and name an adapter, by the gauges `lora waiting DIGEST` and
        `lora running DIGEST`: a request runs from its first token on."""
        found: Multiset[str] = Multiset()
        for id, [buffer, *_] in self._buffers.items():
            if buffer.submission and (digest := buffer.submission.sequences[0].sampling.adapter) and id.endswith("/0"):
                found[f"lora {'running' if buffer.next[id] else 'waiting'} {digest}"] += 1
        return found

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
        """Listen again to all sequences of these requests, and add what token storage has of them."""
        await self.reread({id for request in requests for buffer in self.followers(request) for id in buffer.next})

    def give_up(self, request: str, error: Exception) -> None:
        """Fail the followers of a lost request."""
        self._found(request)
        for buffer in self.followers(request):
            buffer.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Fail all followers, also later ones: nothing is read any more."""
        self._over = error
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


class EventBuffer:
    """The events of a group, in order per sequence beginning with index 0.

    Token i of a sequence has index i; its end has the index after its last token. An event that arrives again must
    equal the first one. The buffer holds up to `UNREAD` events per sequence, not counting snapshots; a follower that
    takes them too slowly gets an error after them. `submission`: set if this gateway can submit the group again.
    `since`: when following began, in seconds of the loop's clock.
    """

    def __init__(
        self, request: str, ids: Iterable[str], submission: Submission | None = None, since: float = 0.0
    ) -> None:
        self.request = request
        self.submission = submission
        self.since = since
        self.next = dict.fromkeys(ids, 0)  # the next index of each unfinished sequence
        self.tokens: dict[str, list[int]] = {id: [] for id in self.next}
        # parallel to tokens, filled only if there is a submission
        self.logprobs: dict[str, list[Logprobs]] = {id: [] for id in self.next}
        self.submitted = False  # the pool knows the sequences; if it does not later, they are lost
        self.behind: set[str] = set()  # sequences with events missing before `submitted` was set
        self.arrived = 0.0  # when the latest events arrived, in seconds of the loop's clock
        self._most = UNREAD * len(self.next)
        self._events: list[TokenEvent] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None  # of the `take` that waits
        self._timer: asyncio.TimerHandle | None = None  # ends that wait
        self._due = 0.0  # when the timer rings, in seconds of the loop's clock

    @property
    def open(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.next)

    @property
    def unread(self) -> bool:
        """Whether events wait to be taken."""
        return bool(self._events)

    def put(self, event: TokenEvent, now: float) -> bool:
        """Add an event unless it arrived before. If events before it are missing, returns False without adding it."""
        if len(self._events) >= self._most:
            self.fail(ApiError(Kind.SLOW_READER, TAKE_FASTER))
        return self._put(event, now)

    def _put(self, event: TokenEvent, now: float) -> bool:
        id, index, token, logprobs = event.id, event.index, event.token, event.logprobs
        expected = self.next.get(id)
        if index != expected:
            if expected is not None and index > expected:
                return False
            self._compare(event, now)
            return True
        if token is not None:
            self.next[id] = index + 1
            self.tokens[id].append(token)
            if logprobs is not None and self.submission is not None:
                self.logprobs[id].append(logprobs)
        else:
            del self.next[id]
        self.arrived = now
        if self._error is None:
            self._events.append(event)
            if self._waiter is not None:
                self._wake()
        return True

    def catch_up(self, snapshot: Snapshot, now: float) -> None:
        """Add what a snapshot contains beyond the events that arrived before."""
        index, logprobs = snapshot.index, snapshot.logprobs
        for i, token in enumerate(snapshot.tokens):
            self._put(TokenEvent(snapshot.id, index + i, token, logprobs[i] if logprobs else None), now)
        if snapshot.end is not None:
            self._put(TokenEvent(snapshot.id, index + len(snapshot.tokens), None, end=snapshot.end), now)

    def fail(self, error: Exception) -> None:
        """No more events will arrive: `take` raises `error` after it has returned the buffered events."""
        self._error = self._error or error
        self._wake()

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """All buffered events: at least one, or none at the loop's time `until`. Raises the error given to `fail`."""
        while not self._events:
            if self._error is not None:
                raise self._error
            loop = asyncio.get_running_loop()
            if until is not None:
                if loop.time() >= until:
                    break
                self._ring_at(until, loop)
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """No more events will be taken."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring_at(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Wake `take` at `until` or before. A timer that rings before is kept: setting one for each token would cost
        more than to be woken once too often."""
        if self._timer is None or self._due > until:
            self.close()
            self._timer, self._due = loop.call_at(until, self._ring), until

    def _ring(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _compare(self, event: TokenEvent, now: float) -> None:
        """An index that arrived before. The pool's server may have lost the first event, and this one may differ."""
        tokens = self.tokens[event.id]
        if event.token is not None:
            same = event.index < len(tokens) and event.token == tokens[event.index]
        else:
            assert event.end is not None
            if event.id in self.next and event.end.reason in (FinishReason.CANCELLED, FinishReason.ERROR):
                self._put(TokenEvent(event.id, len(tokens), None, end=event.end), now)
                return
            same = event.index == len(tokens)
        if not same:
            text = f"Token {event.index} came again and is another: the answer cannot go on as it began."
            self.fail(ApiError(Kind.DIVERGED, text))
