"""One submitted request as its handler sees it: events until all its choices have ended, or its client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Self

from starlette.types import Receive

from gateway.door import Ticket
from gateway.errors import ApiError, ClientGone, Kind
from gateway.inbox import Inbox
from gateway.plan import Plan
from gateway.reader import Reader
from gateway.timing import Timing
from services.errors import PoolUnavailable
from services.messages import TokenEvent
from services.pool.pool import RequestPool
from services.telemetry import Counters

CANCEL_TRIES, CANCEL_PAUSE = 60, 1.0  # an outage of the pool must not keep an unwanted request running

log = logging.getLogger(__name__)


class Generation:
    """A follower of a request; `with generation:` closes it. `request` and `plan` are the ones the pool has."""

    def __init__(
        self,
        generations: Generations,
        request: str,
        plan: Plan,
        inbox: Inbox,
        receive: Receive | None,
        resumable: bool,
        timing: Timing | None = None,
    ) -> None:
        self.request = request
        self.plan = plan
        self.inbox = inbox
        self.resumable = resumable
        self._generations = generations
        self._timing = timing
        self._watcher = asyncio.create_task(_watch(receive, inbox)) if receive else None

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """What has come: events in order for each sequence, from index 0 on, none twice. At least one, or none at the
        loop's time `until`. Raises ClientGone, or ApiError when the request is lost."""
        events = await self.inbox.take(until)
        if self._timing:
            self._timing.observe(events, self.inbox.arrived)
        return events

    def close(self) -> None:
        """Nobody reads it any more. The request ends when it is nobody's, at once or after the pool's grace."""
        if self._watcher:
            self._watcher.cancel()
        self._generations.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Generations:
    """Opens them. `receive` in its methods tells when a client goes; None: the caller closes the generation itself."""

    def __init__(self, pool: RequestPool, reader: Reader, counters: Counters) -> None:
        self._pool = pool
        self._reader = reader
        self._counters = counters
        self._cancels: set[asyncio.Task[None]] = set()

    async def open(self, ticket: Ticket, receive: Receive | None, received: float) -> Generation:
        """Submit, and follow what becomes of it. The request was `received` at that time of the loop's clock.

        Where the idempotency key is known, the request that came earlier under it is followed from its first token.
        Raises ApiError when the pool is full or the idempotency key belongs to another request, PoolUnavailable.
        """
        submission = ticket.submission
        ids = [s.id for s in submission.sequences]
        inbox = self._reader.follow(ids)
        submitted = False
        try:
            reply = await self._pool.submit(submission)
            if reply.refused is not None:
                submitted = True
                raise ApiError(Kind.POOL_FULL, f"The request pool is full ({reply.refused}); try again later.")
            if reply.request != submission.request:
                return await self._join(ticket, reply.request, receive)
            submitted = inbox.submitted = True
        finally:
            if not inbox.submitted:
                self._reader.unfollow(inbox, ids)
            if not submitted:  # nobody knows whether it arrived
                self._cancel(submission.request)
        timing = Timing(self._counters, received, submission.sequences)
        return Generation(self, submission.request, ticket.plan, inbox, receive, submission.resumable, timing)

    async def follow(self, request: str, tenant: str, receive: Receive | None) -> Generation:
        """Follow a request by its id, from its first token, whoever submitted it and wherever.

        Raises ApiError where the pool does not hold it or it is another tenant's, PoolUnavailable.
        """
        body = await self._pool.body(request)
        if body is None:
            raise ApiError(Kind.REQUEST_NOT_FOUND, f"There is no request '{request[:100]}' (any more).")
        inbox = self._reader.follow(await self._pool.sequences(request))
        inbox.submitted = True
        generation = Generation(self, request, Plan.unpack(body), inbox, receive, True)
        try:
            await self._reader.reread(list(inbox.next))
        except BaseException:
            generation.close()
            raise
        return generation

    async def _join(self, ticket: Ticket, request: str, receive: Receive | None) -> Generation:
        generation = await self.follow(request, ticket.submission.tenant, receive)
        if generation.plan.digest != ticket.plan.digest:
            generation.close()
            raise ApiError(Kind.KEY_REUSED, "This 'Idempotency-Key' was used with another request.")
        generation.plan = replace(generation.plan, include_usage=ticket.plan.include_usage)
        return generation

    def closed(self, generation: Generation) -> None:
        """Called by the generation."""
        ids = [f"{generation.request}/{i}" for i in range(generation.plan.choices)]
        self._reader.unfollow(generation.inbox, ids)
        if generation.inbox.open and not generation.resumable:
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


async def _watch(receive: Receive, inbox: Inbox) -> None:
    """Until the client goes. A server that can no longer say so (Serve's proxy died) has lost it too."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("no more word of the client: %r", error)
    inbox.fail(ClientGone())
