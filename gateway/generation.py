"""One request as a handler sees it that answers a client: events until all its choices have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import ParamSpec, Protocol, Self, TypeVar

from starlette.types import Receive

from gateway.errors import ClientGone
from gateway.inbox import Inbox
from gateway.plan import Plan
from gateway.timing import Timing
from gateway.turns import Turn
from services.messages import Logprobs, TokenEvent

log = logging.getLogger(__name__)

EVENT, ENTRY = 64, 8  # bytes of a body that cost as much as a token event, as one of its log probabilities

P = ParamSpec("P")
T = TypeVar("T")


class Work(Protocol):
    """The result of `function`, which works on so many bytes; in a thread if these are many."""

    async def __call__(self, size: int, function: Callable[[], T]) -> T: ...


def size_of(events: Iterable[TokenEvent]) -> int:
    """What making an answer of them costs, in bytes of a body that cost as much."""
    return sum(EVENT + ENTRY * _entries(event.logprobs) for event in events)


def _entries(logprobs: Logprobs | None) -> int:
    if logprobs is None:
        return 0
    scored = 0 if logprobs.prompt is None else len(logprobs.prompt.tokens) + len(logprobs.prompt.top_ids)
    return 1 + len(logprobs.top) + scored


class Generation:
    """A follower of a request; `with generation:` closes it. `request` and `plan` are the ones the pool has.

    `receive` tells when the client goes; without it, whoever opened the generation closes it.
    """

    def __init__(
        self,
        plan: Plan,
        inbox: Inbox,
        on_close: Callable[[Inbox], None],
        receive: Receive | None,
        work: Work,
        timing: Timing | None = None,
        turn: Turn | None = None,
    ) -> None:
        """`work` does what takes long, off the loop. `turn` ends when what is there by now has been worked on."""
        self.request = inbox.request
        self.plan = plan
        self._inbox = inbox
        self._on_close = on_close
        self._timing = timing
        self._work = work
        self._turn = turn
        self._watcher = asyncio.create_task(_watch(receive, inbox)) if receive else None

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """What has come: events in order for each sequence, from index 0 on, none twice. At least one, or none at the
        loop's time `until`. Raises ClientGone, GatewayStops, or ApiError when the request is lost."""
        events = await self._inbox.take(until)
        if self._timing:
            self._timing.observe(events, self._inbox.arrived)
        return events

    async def work(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, which makes something of events that were taken, of this `size_of`."""
        try:
            return await self._work(size, partial(function, *args, **kwargs))
        finally:
            self._end_turn()

    def close(self) -> None:
        """This follower wants no more. When it was the last of an open request, the request ends, now or later."""
        self._end_turn()
        if self._watcher:
            self._watcher.cancel()
        self._on_close(self._inbox)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _watch(receive: Receive, inbox: Inbox) -> None:
    """Until the client goes. A server that can no longer say so (Serve's proxy died) has lost it too."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("no more word of the client: %r", error)
    inbox.fail(ClientGone())
