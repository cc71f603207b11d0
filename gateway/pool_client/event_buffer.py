"""The events of one followed request: each index of each sequence once, buffered until the follower takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.errors import ApiError, Kind
from services.messages import Logprobs, Snapshot, Submission, TokenEvent
from services.requests import FinishReason

UNREAD = 4096  # maximum number of buffered events per sequence
TAKE_FASTER = "The stream was not read for too long; it can be read again from where it broke off."


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
