"""One submitted request as its handler sees it: events until all its choices have ended, or its client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import orjson
from starlette.types import Receive

from gateway.door import Ticket
from gateway.errors import ApiError, ClientGone, Kind
from gateway.inbox import Inbox
from gateway.reader import Reader
from gateway.timing import Timing
from services.errors import PoolUnavailable
from services.messages import TokenEvent
from services.pool.pool import RequestPool
from services.telemetry import Counters

CANCEL_TRIES, CANCEL_PAUSE = 60, 1.0  # an outage of the pool must not keep an unwanted request running

log = logging.getLogger(__name__)


class Generation:
    """`request` and `created` are an earlier request's where the idempotency key was known."""

    def __init__(self, ticket: Ticket, request: str, created: int, inbox: Inbox, timing: Timing) -> None:
        self.ticket = ticket
        self.request = request
        self.created = created
        self.inbox = inbox
        self._timing = timing
        self.watcher: asyncio.Task[None] | None = None

    async def take(self) -> list[TokenEvent]:
        """What has come, at least one event. Raises ClientGone, or ApiError when the request is lost."""
        events = await self.inbox.take()
        self._timing.observe(events, self.inbox.arrived)
        return events


class Generations:
    """Opens and closes them."""

    def __init__(self, pool: RequestPool, reader: Reader, counters: Counters) -> None:
        self._pool = pool
        self._reader = reader
        self._counters = counters
        self._cancels: set[asyncio.Task[None]] = set()

    async def open(self, ticket: Ticket, receive: Receive, received: float) -> Generation:
        """Submit, and follow what becomes of it; `receive` tells when the client goes. The request was `received` at
        that time of the loop's clock.

        Raises ApiError when the pool is full or the idempotency key belongs to another request, PoolUnavailable.
        """
        submission = ticket.submission
        timing = Timing(self._counters, received, submission.sequences)
        ids = [s.id for s in submission.sequences]
        inbox = self._reader.follow(ids)
        submitted = False
        try:
            reply = await self._pool.submit(submission)
            if reply.refused is not None:
                submitted = True
                raise ApiError(Kind.POOL_FULL, f"The request pool is full ({reply.refused}); try again later.")
            if reply.request != submission.request:
                return await self._join(ticket, reply.request, timing, receive)
            submitted = inbox.submitted = True
        finally:
            if not inbox.submitted:
                self._reader.unfollow(inbox, ids)
            if not submitted:  # nobody knows whether it arrived
                self._cancel(submission.request)
        return _watched(Generation(ticket, submission.request, ticket.created, inbox, timing), receive)

    async def _join(self, ticket: Ticket, request: str, timing: Timing, receive: Receive) -> Generation:
        """Follow the request that came earlier under the same idempotency key, from its first token on."""
        group = await self._pool.group(request)
        body = orjson.loads(group.body) if group else {}
        if group is None or body["digest"] != orjson.loads(ticket.submission.body)["digest"]:
            text = "This 'Idempotency-Key' was used with another request."
            raise ApiError(Kind.KEY_REUSED, text)
        inbox = self._reader.follow(group.sequences)
        inbox.submitted = True
        generation = _watched(Generation(ticket, request, body["created"], inbox, timing), receive)
        try:
            await self._reader.reread(list(inbox.next))
        except BaseException:
            self.close(generation)
            raise
        return generation

    def close(self, generation: Generation) -> None:
        """Nobody reads it any more: cancelled at once in the pool, unless it ended or is resumable."""
        if generation.watcher:
            generation.watcher.cancel()
        ids = [f"{generation.request}/{i}" for i in range(len(generation.ticket.submission.sequences))]
        self._reader.unfollow(generation.inbox, ids)
        if generation.inbox.open and not generation.ticket.resumable:
            self._cancel(generation.request)

    def _cancel(self, request: str) -> None:
        task = asyncio.create_task(self._cancelled(request))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    async def _cancelled(self, request: str) -> None:
        for _ in range(CANCEL_TRIES):
            with contextlib.suppress(PoolUnavailable):
                await self._pool.cancel(request)
                return
            await asyncio.sleep(CANCEL_PAUSE)
        log.warning("request %s could not be cancelled: the pool is away", request)


def _watched(generation: Generation, receive: Receive) -> Generation:
    generation.watcher = asyncio.create_task(_watch(receive, generation.inbox))
    return generation


async def _watch(receive: Receive, inbox: Inbox) -> None:
    """Until the client goes. A server that can no longer say so (Serve's proxy died) has lost it too."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("no more word of the client: %r", error)
    inbox.fail(ClientGone())
