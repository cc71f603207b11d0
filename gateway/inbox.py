"""What has come for one HTTP request: the events of its sequences, each index once, kept until it is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from gateway.errors import ApiError, Kind
from services.messages import Logprobs, Snapshot, Submission, TokenEvent
from services.requests import FinishReason

UNREAD = 4096  # events of a sequence that wait to be taken, at most
TAKE_FASTER = "The stream was not read for too long; it can be read again from where it broke off."


class Inbox:
    """Events of a group in order per sequence, from index 0 on, whatever the reader hands over.

    Token i of a sequence has index i; its end comes under the index after its last token. What comes again must be
    what came before. Up to `UNREAD` events of each sequence wait to be taken, beside snapshots; a follower that lets
    more come gets those and an error after them. `submission` is there where this gateway could submit the group again.
    `since` is when it began to be followed, seconds on the loop's clock.
    """

    def __init__(
        self, request: str, ids: Iterable[str], submission: Submission | None = None, since: float = 0.0
    ) -> None:
        self.request = request
        self.submission = submission
        self.since = since
        self.next = dict.fromkeys(ids, 0)  # the index to come, per sequence that has not ended
        self.tokens: dict[str, list[int]] = {id: [] for id in self.next}
        self.logprobs: dict[str, list[Logprobs]] = {
            id: [] for id in self.next
        }  # parallel to tokens, kept where there is a submission
        self.submitted = False  # the pool knows the sequences: if later it does not, they are lost
        self.behind: set[str] = set()  # sequences of which events were missing before it was submitted
        self.arrived = 0.0  # when the latest events came, seconds on the loop's clock
        self._most = UNREAD * len(self.next)
        self._events: list[TokenEvent] = []
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    @property
    def open(self) -> bool:
        """A sequence has not ended yet."""
        return bool(self.next)

    @property
    def unread(self) -> bool:
        """Something waits to be taken."""
        return bool(self._events)

    def put(self, event: TokenEvent, now: float) -> bool:
        """Take an event unless it came before. False: events before it are missing, it was not taken."""
        if len(self._events) >= self._most:
            self.fail(ApiError(Kind.SLOW_READER, TAKE_FASTER))
        return self._put(event, now)

    def _put(self, event: TokenEvent, now: float) -> bool:
        expected = self.next.get(event.id)
        if expected is None or event.index < expected:
            self._compare(event, now)
            return True
        if event.index > expected:
            return False
        if event.token is not None:
            self.next[event.id] = expected + 1
            self.tokens[event.id].append(event.token)
            if event.logprobs is not None and self.submission is not None:
                self.logprobs[event.id].append(event.logprobs)
        else:
            del self.next[event.id]
        self.arrived = now
        if self._error is None:
            self._events.append(event)
            self._wake.set()
        return True

    def catch_up(self, snapshot: Snapshot, now: float) -> None:
        """Take what a snapshot has beyond what came before."""
        index, logprobs = snapshot.index, snapshot.logprobs
        for i, token in enumerate(snapshot.tokens):
            self._put(TokenEvent(snapshot.id, index + i, token, logprobs[i] if logprobs else None), now)
        if snapshot.end is not None:
            self._put(TokenEvent(snapshot.id, index + len(snapshot.tokens), None, end=snapshot.end), now)

    def fail(self, error: Exception) -> None:
        """Nothing more will come: `take` raises `error` once it has given what is there."""
        self._error = self._error or error
        self._wake.set()

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """All that has come: at least one event, or none at the loop's time `until`. Raises what `fail` was given."""
        if not self._events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._arrival()
        events, self._events = self._events, []
        return events

    async def _arrival(self) -> None:
        while not self._events:
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()

    def _compare(self, event: TokenEvent, now: float) -> None:
        """An index that came before: the pool's server may have lost it, and what comes again may be another."""
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
