"""The one blocking reader of this gateway's event stream, which hands events to the requests that wait for them.

The stream is a hint, token storage is the truth: on a gap, after an outage of the pool, when the pool had forgotten
this gateway, and for sequences that were silent for long, the sequences are attached again and read from where
they stand. After an outage the stream is read from its start too: it may be shorter than it was.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable

from gateway.inbox import Inbox
from services.errors import PoolUnavailable
from services.messages import Snapshot, Submission, TokenEvent
from services.pool.pool import RequestPool

BLOCK = 1.0  # seconds a read waits for events
SILENCE = 10.0  # seconds without an event after which a sequence is read from storage
ATTACH_AT_ONCE = 256  # sequences read in one script: it must not hold up the pool
HAND_OUT_AT_ONCE = 1024  # tokens of snapshots, a millisecond or two, before others go on
PATIENCE = 5.0  # seconds after an outage in which what the pool lost is put back by whoever has it
FIRST_RETRY, LAST_RETRY = 0.05, 1.0  # seconds between tries while the pool is away

log = logging.getLogger(__name__)


class Reader:
    """`lost`: followed requests that the pool does not know, and since when (the loop's clock)."""

    def __init__(self, pool: RequestPool, gateway: str) -> None:
        self._pool = pool
        self._gateway = gateway
        self._inboxes: dict[str, list[Inbox]] = {}  # by sequence
        self._from_start = True  # the next read begins at the stream's start: it is another stream
        self.away = False
        self._returned = -math.inf  # when the pool last came back
        self.lost: dict[str, float] = {}
        self.anything_lost = asyncio.Event()

    def follow(self, request: str, ids: Iterable[str], submission: Submission | None = None) -> Inbox:
        """An inbox for a group's events from now on. Called before the submit, so that none is missed."""
        inbox = Inbox(request, ids, submission, self._now())
        for sequence in inbox.tokens:
            self._inboxes.setdefault(sequence, []).append(inbox)
        return inbox

    def unfollow(self, inbox: Inbox) -> None:
        for sequence in inbox.tokens:
            inboxes = self._inboxes.get(sequence, [])
            if inbox in inboxes:
                inboxes.remove(inbox)
            if not inboxes:
                self._inboxes.pop(sequence, None)
        if not self.follows(inbox.request):
            self._found(inbox.request)

    def followers(self, request: str) -> list[Inbox]:
        return self._inboxes.get(f"{request}/0", [])

    def follows(self, request: str) -> bool:
        return f"{request}/0" in self._inboxes

    @property
    def requests(self) -> int:
        """How many requests somebody at this gateway follows."""
        return sum(sequence.endswith("/0") for sequence in self._inboxes)

    @property
    def settled(self) -> bool:
        """What the pool does not know now, nobody is about to put back."""
        return not self.away and self._now() - self._returned > PATIENCE

    async def run(self) -> None:
        """Read and hand out, until cancelled."""
        cursor, retry = "0", FIRST_RETRY
        checked = self._now()
        while True:
            try:
                after, self._from_start = "0" if self._from_start else cursor, False
                cursor, events = await self._pool.read_events(self._gateway, after, BLOCK)
                gaps = self._hand_out(events)
                if self.away:
                    await self.reread()
                    self.away, self._returned = False, self._now()
                elif gaps:
                    await self.reread(gaps)
                if self._now() - checked > SILENCE:
                    checked = self._now()
                    await self.reread(self._silent())
                retry = FIRST_RETRY
            except PoolUnavailable as error:
                self._lose(error)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY)

    def _lose(self, error: PoolUnavailable) -> None:
        if not self.away:
            log.warning("the pool is away: %s", error)
        self.away = self._from_start = True
        self.lost.clear()
        self.anything_lost.clear()

    async def restart(self) -> None:
        """The pool had forgotten this gateway, or cut its stream: read it from the start, and all sequences too.

        Raises PoolUnavailable.
        """
        self._from_start = True
        await self.reread()

    async def reread(self, ids: Iterable[str] | None = None) -> None:
        """Attach again to `ids`, or to all that is followed, and take what storage has of them."""
        wanted = self._from_indices(self._inboxes if ids is None else ids)
        async for snapshot in self._attach(wanted):
            self._catch_up(snapshot, self._inboxes.get(snapshot.id, ()))

    async def catch_up(self, inbox: Inbox) -> None:
        """Attach for a follower of a request that the pool has, and give it what storage has beyond where it stands.
        Others that follow the request have that already. Raises PoolUnavailable."""
        async for snapshot in self._attach(dict(inbox.next)):
            inbox.submitted = True
            self._catch_up(snapshot, [inbox])
        if inbox.behind:
            await self.reread(inbox.behind)

    async def _attach(self, wanted: dict[str, int]) -> AsyncIterator[Snapshot]:
        """What storage has of sequences from these indices on. Other tasks run in between."""
        items, handed = list(wanted.items()), 0
        for start in range(0, len(items), ATTACH_AT_ONCE):
            for snapshot in await self._pool.listen(self._gateway, dict(items[start : start + ATTACH_AT_ONCE])):
                yield snapshot
                handed += len(snapshot.tokens)
                if handed > HAND_OUT_AT_ONCE:
                    handed = 0
                    await asyncio.sleep(0)

    async def reread_requests(self, requests: Iterable[str]) -> None:
        """The same for all sequences of these requests."""
        await self.reread({id for request in requests for inbox in self.followers(request) for id in inbox.next})

    def give_up(self, request: str, error: Exception) -> None:
        """Tell the followers of a lost request."""
        self._found(request)
        for inbox in self.followers(request):
            inbox.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Tell all followers: nothing is read any more."""
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                inbox.fail(error)

    def _hand_out(self, events: list[TokenEvent]) -> set[str]:
        """Returns the ids of which events are missing."""
        now, gaps = self._now(), set[str]()
        for event in events:
            for inbox in self._inboxes.get(event.id, ()):
                if not inbox.put(event, now):
                    (gaps if inbox.submitted else inbox.behind).add(event.id)
        return gaps

    def _from_indices(self, ids: Iterable[str]) -> dict[str, int]:
        """From where to read each sequence that the pool must know and that has not ended."""
        wanted = {}
        for sequence in ids:
            standing = [i.next[sequence] for i in self._inboxes.get(sequence, ()) if i.submitted and sequence in i.next]
            if standing:
                wanted[sequence] = min(standing)
        return wanted

    def _catch_up(self, snapshot: Snapshot, inboxes: Iterable[Inbox]) -> None:
        for inbox in inboxes:
            if snapshot.known:
                inbox.catch_up(snapshot, self._now())
                self._found(inbox.request)
            elif inbox.submitted:
                self.lost.setdefault(inbox.request, self._now())
                self.anything_lost.set()

    def _found(self, request: str) -> None:
        self.lost.pop(request, None)
        if not self.lost:
            self.anything_lost.clear()

    def _silent(self) -> list[str]:
        before = self._now() - SILENCE
        return [s for s, inboxes in self._inboxes.items() if any(i.arrived < before for i in inboxes)]

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
