"""Generation: a follower of a request, which yields its events until all its choices have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, Self, TypeVar

from starlette.types import Receive

from gateway.answer.plan import Plan
from gateway.errors import ClientGone
from gateway.pool_client.event_buffer import EventBuffer
from gateway.pool_client.latency import RequestLatency
from gateway.pool_client.read_slots import ReadSlot
from gateway.pool_client.request_record import RequestRecord
from services.messages import Logprobs, TokenEvent

EVENT, ENTRY = 64, 8  # cost of a token event and of one of its log probabilities, in bytes of a body

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class Work(Protocol):
    """The result of `function`, which handles about `size` bytes; in a thread if these are many."""

    async def __call__(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


def size_of(events: Sequence[TokenEvent]) -> int:
    """The cost of making an answer of these events, in bytes of a body of the same cost."""
    return EVENT * len(events) + sum([ENTRY * _entries(e.logprobs) for e in events if e.logprobs is not None])


class Generation:
    """A follower of a request; `with generation:` closes it. `request` and `plan` are those of the pool.

    `receive` reports when the client disconnects; without it, the caller closes the generation.
    """

    def __init__(
        self,
        plan: Plan,
        buffer: EventBuffer,
        on_close: Callable[[EventBuffer], None],
        receive: Receive | None,
        work: Work,
        latency: RequestLatency | None = None,
        slot: ReadSlot | None = None,
        record: RequestRecord | None = None,
    ) -> None:
        """`work` runs slow functions off the event loop. `slot` is released when the stored events are handled."""
        self.request = buffer.request
        self.plan = plan
        self._buffer = buffer
        self._on_close = on_close
        self._latency = latency
        self._work = work
        self._slot = slot
        self._record = record
        self._watcher = asyncio.create_task(_watch(receive, buffer)) if receive else None

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """The events that have arrived, each once and in order per sequence, beginning with index 0. At least one
        event, or none at the loop's time `until`. Raises ClientGone, GatewayStops, or ApiError if the request is
        lost."""
        events = await self._buffer.take(until)
        if self._latency:
            self._latency.observe(events, self._buffer.arrived)
        if self._record:
            self._record.observe(events, self._buffer.arrived)
        return events

    async def work(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `function`, which handles events that were taken, with this `size_of`."""
        try:
            return await self._work(size, function, *args, **kwargs)
        finally:
            self._release()

    def close(self) -> None:
        """Stop following. When the last follower of an unfinished request stops, the request ends now or later."""
        self._release()
        if self._watcher:
            self._watcher.cancel()
        self._buffer.close()
        if self._record:
            self._record.close(self._buffer)
        self._on_close(self._buffer)

    def _release(self) -> None:
        if self._slot is not None:
            self._slot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _watch(receive: Receive, buffer: EventBuffer) -> None:
    """Fail the buffer when the client disconnects, or when the server cannot report it any more (Serve's proxy
    died)."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("the connection of the client cannot be watched any more: %r", error)
    buffer.fail(ClientGone())


def _entries(logprobs: Logprobs) -> int:
    scored = 0 if logprobs.prompt is None else len(logprobs.prompt.tokens) + len(logprobs.prompt.top_ids)
    return 1 + len(logprobs.top) + scored
