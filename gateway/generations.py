"""How a handler comes to follow a request: it submits one, or goes on with one that the pool holds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from starlette.types import Receive

from gateway.desk import Desk
from gateway.door import Ticket
from gateway.errors import ApiError, Kind
from gateway.generation import Generation, Work
from gateway.inbox import Inbox
from gateway.leaving import Leaving
from gateway.plan import Plan
from gateway.position import Position
from gateway.reader import PATIENCE, Reader
from gateway.refused import refused
from gateway.timing import Timing
from gateway.turns import Turn, Turns
from services.messages import Group
from services.pool.pool import RequestPool
from services.telemetry import Counters

MOST_FOLLOWERS = 64  # of a request at a gateway: each costs what the request's events cost
LOOKS = 20  # within `PATIENCE` seconds, for a request that somebody may be about to put back


class Generations:
    """`receive`, in every method, tells when the client goes; None: whoever opens the generation closes it."""

    def __init__(self, pool: RequestPool, reader: Reader, leaving: Leaving, counters: Counters, desk: Desk) -> None:
        self._pool = pool
        self._reader = reader
        self._leaving = leaving
        self._counters = counters
        self._desk = desk
        self._turns = Turns()

    async def open(
        self, ticket: Ticket, receive: Receive | None, received: float | None, line: str | None = None
    ) -> Generation:
        """Submit, and follow what becomes of it. The request was `received` at that time of the loop's clock; None:
        nobody waits for it, its times are not measured. Its answer is made in this `line` of the desk, its tenant's
        unless said.

        Where the idempotency key is known, the request that came earlier under it is followed from its first token.
        Raises ApiError when the pool is full, the wait too long, the idempotency key another request's, or the request
        has as many followers as it may have; PoolUnavailable.
        """
        submission = ticket.submission
        request, plan = submission.request, ticket.plan
        self._check_followers(request)
        turn: Turn | None = None
        timing = None if received is None else Timing(self._counters, received, submission.sequences)
        inbox = self._reader.follow(request, [s.id for s in submission.sequences], submission)
        try:
            await self._leaving.settled(request)
            reply = await self._pool.submit(submission)
            if reply.refused is not None:
                raise refused(reply.refused)
            if reply.request != request:
                self._leaving.leave(reply.request)
                raise ApiError(Kind.KEY_REUSED, "This 'Idempotency-Key' was used with another request.")
            if reply.existed:
                group = await self._group(request, submission.tenant)
                plan, timing = _as_asked(Plan.unpack(group.body), ticket), None
                turn = await self._caught_up(inbox, submission.tenant)
            inbox.submitted = True
        except BaseException:
            self._close(inbox)  # nobody knows whether it arrived
            raise
        work = self._work(line or submission.tenant)
        return Generation(plan, inbox, self._close, receive, work, timing, turn)

    async def follow(self, request: str, tenant: str, receive: Receive | None) -> Generation:
        """Follow a request by its id, from its first token, whoever submitted it and wherever.

        Raises ApiError where the pool does not hold it or it is another tenant's, PoolUnavailable. Should the pool lose
        it later and nobody put it back within `PATIENCE` seconds, taking raises ApiError.
        """
        group = await self._group(request, tenant)
        return await self._attached(group, Plan.unpack(group.body), receive)

    async def resume(self, ticket: Ticket, position: Position, receive: Receive | None, received: float) -> Generation:
        """Follow the request that `position` names, which was asked for by the same as `ticket`.

        What the pool does not know any more is submitted again if the ticket's idempotency key gives it this id: its
        tokens will be the same. Raises ApiError as `follow` does, and where the ticket asks for something else.
        """
        submission = ticket.submission
        if position.request == submission.request:
            return await self.open(ticket, receive, received)
        group = await self._group(position.request, submission.tenant)
        plan = Plan.unpack(group.body)
        if plan.digest != ticket.plan.digest:
            text = f"'Last-Event-ID' names request '{position.request}', which asked for something else."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")
        return await self._attached(group, _as_asked(plan, ticket), receive)

    async def _attached(self, group: Group, plan: Plan, receive: Receive | None) -> Generation:
        self._check_followers(group.request)
        inbox = self._reader.follow(group.request, group.sequences)
        try:
            await self._leaving.settled(group.request)
            turn = await self._caught_up(inbox, group.tenant)
        except BaseException:
            self._close(inbox)
            raise
        return Generation(plan, inbox, self._close, receive, self._work(group.tenant), turn=turn)

    async def _caught_up(self, inbox: Inbox, tenant: str) -> Turn:
        """Read what the pool has. The turn lasts until an answer was made of it, or ends here if nothing was there."""
        turn = await self._turns.take(tenant)
        try:
            await self._reader.catch_up(inbox)
        except BaseException:
            turn.end()
            raise
        if not inbox.unread:
            turn.end()
        return turn

    def _work(self, line: str) -> Work:
        return partial(self._desk.answer, line)

    def _check_followers(self, request: str) -> None:
        followers = len(self._reader.followers(request))
        if followers >= MOST_FOLLOWERS:
            text = f"Request '{request}' has {followers} followers at this gateway, its most."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)

    async def _group(self, request: str, tenant: str) -> Group:
        group = await self._look(request, tenant)
        for _ in range(LOOKS):
            if group is not None or self._reader.settled:
                break
            await asyncio.sleep(PATIENCE / LOOKS)
            group = await self._look(request, tenant)
        if group is None or group.tenant != tenant:
            raise ApiError(Kind.REQUEST_NOT_FOUND, f"There is no request '{request[:100]}' (any more).")
        return group

    async def _look(self, request: str, tenant: str) -> Group | None:
        with await self._turns.take(tenant):
            return await self._pool.group(request)

    def _close(self, inbox: Inbox) -> None:
        self._reader.unfollow(inbox)
        if inbox.open and not self._reader.follows(inbox.request):
            self._leaving.leave(inbox.request)


def _as_asked(plan: Plan, ticket: Ticket) -> Plan:
    """The same request may be followed in another way than it was submitted."""
    asked = ticket.plan
    return replace(plan, include_usage=asked.include_usage, continuous_usage=asked.continuous_usage)
