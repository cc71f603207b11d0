"""Following a request: `Generations` submits it, or finds it in the pool; a `Generation` yields its events.

When nobody at this gateway follows a request any more, `AbandonedRequests` tells the pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from starlette.types import Receive

from gateway.answer.plan import Plan
from gateway.errors import ApiError, ClientGone, Kind
from gateway.http.headers import Position
from gateway.pool_client.event_buffer import EventBuffer
from gateway.pool_client.event_reader import PATIENCE, EventReader
from gateway.pool_client.latency import RequestLatency
from gateway.refused import refused
from gateway.validation import ValidatedRequest
from services.background import start
from services.errors import PoolUnavailable
from services.messages import Group, TokenEvent
from services.pool.pool import RequestPool
from services.telemetry import Counters

MOST_FOLLOWERS = 64  # per request and gateway: each follower costs as much as the request's events
LOOKS = 20  # lookups within `PATIENCE` seconds for a request that a gateway may be about to put back
TRIES, PAUSE = 60, 1.0  # tries to abandon a request and seconds between them: the pool may be unavailable

log = logging.getLogger(__name__)


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
        latency: RequestLatency | None = None,
    ) -> None:
        self.request = buffer.request
        self.plan = plan
        self._buffer = buffer
        self._on_close = on_close
        self._latency = latency
        self._watcher = asyncio.create_task(_watch(receive, buffer)) if receive else None

    async def take(self, until: float | None = None) -> list[TokenEvent]:
        """The events that have arrived, each once and in order per sequence, beginning with index 0. At least one
        event, or none at the loop's time `until`. Raises ClientGone, GatewayStops, or ApiError if the request is
        lost."""
        events = await self._buffer.take(until)
        if self._latency:
            self._latency.observe(events, self._buffer.arrived)
        return events

    def close(self) -> None:
        """Stop following. When the last follower of an unfinished request stops, the request ends now or later."""
        if self._watcher:
            self._watcher.cancel()
        self._on_close(self._buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Generations:
    """`receive`, in every method, reports when the client disconnects; None: the caller closes the generation."""

    def __init__(
        self, pool: RequestPool, reader: EventReader, abandoned: AbandonedRequests, counters: Counters
    ) -> None:
        self._pool = pool
        self._reader = reader
        self._abandoned = abandoned
        self._counters = counters

    async def open(
        self, validated: ValidatedRequest, position: Position | None, receive: Receive | None, received: float
    ) -> Generation:
        """Submit a request, or resume it if the client has a position in its stream. Raises as these do."""
        if position is None:
            return await self.submit(validated, receive, received)
        return await self.resume(validated, position, receive, received)

    async def submit(self, validated: ValidatedRequest, receive: Receive | None, received: float | None) -> Generation:
        """Submit a request and follow it. `received`: the time of the loop's clock at which it arrived; None: its
        latency is not measured.

        If the idempotency key is known, the earlier request with that key is followed from its first token.
        Raises ApiError if the pool is full, the wait too long or the idempotency key that of another request;
        PoolUnavailable.
        """
        submission = validated.submission
        request, plan = submission.request, validated.plan
        latency = None if received is None else RequestLatency(self._counters, received, submission.sequences)
        buffer = self._reader.follow(request, [s.id for s in submission.sequences], submission)
        try:
            await self._abandoned.settled(request)
            reply = await self._pool.submit(submission)
            if reply.refused is not None:
                raise refused(reply.refused)
            if reply.request != request:
                self._abandoned.add(reply.request)
                raise ApiError(Kind.KEY_REUSED, "This 'Idempotency-Key' was used with another request.")
            buffer.submitted = True
            if reply.existed:
                group = await self._group(request, submission.tenant)
                plan, latency = _as_requested(Plan.unpack(group.body), validated), None
                await self._reader.reread_requests([request])
        except BaseException:
            self._close(buffer)  # whether the submission arrived is unknown
            raise
        return Generation(plan, buffer, self._close, receive, latency)

    async def follow(self, request: str, tenant: str, receive: Receive | None) -> Generation:
        """Follow a request by its id from its first token, wherever it was submitted.

        Raises ApiError if the pool does not hold it or it belongs to another tenant; PoolUnavailable. If the pool loses
        the request later and no gateway puts it back within `PATIENCE` seconds, `take` raises ApiError.
        """
        group = await self._group(request, tenant)
        return await self._follow(group, Plan.unpack(group.body), receive)

    async def resume(
        self, validated: ValidatedRequest, position: Position, receive: Receive | None, received: float
    ) -> Generation:
        """Follow the request that `position` names, which must have asked for the same as `validated`.

        If the pool no longer knows it, it is submitted again, provided that the idempotency key gives it the same id:
        its tokens will be the same. Raises ApiError as `follow` does, and if `validated` asks for something else.
        """
        submission = validated.submission
        if position.request == submission.request:
            return await self.submit(validated, receive, received)
        group = await self._group(position.request, submission.tenant)
        plan = Plan.unpack(group.body)
        if plan.digest != validated.plan.digest:
            text = f"'Last-Event-ID' names request '{position.request}', which asked for something else."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")
        return await self._follow(group, _as_requested(plan, validated), receive)

    async def _follow(self, group: Group, plan: Plan, receive: Receive | None) -> Generation:
        followers = len(self._reader.followers(group.request))
        if followers >= MOST_FOLLOWERS:
            text = f"Request '{group.request}' has {followers} followers at this gateway, its most."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)
        buffer = self._reader.follow(group.request, group.sequences)
        buffer.submitted = True
        try:
            await self._abandoned.settled(group.request)
            await self._reader.reread_requests([group.request])
        except BaseException:
            self._close(buffer)
            raise
        return Generation(plan, buffer, self._close, receive)

    async def _group(self, request: str, tenant: str) -> Group:
        group = await self._pool.group(request)
        for _ in range(LOOKS):
            if group is not None or self._reader.settled:
                break
            await asyncio.sleep(PATIENCE / LOOKS)
            group = await self._pool.group(request)
        if group is None or group.tenant != tenant:
            raise ApiError(Kind.REQUEST_NOT_FOUND, f"There is no request '{request[:100]}' (any more).")
        return group

    def _close(self, buffer: EventBuffer) -> None:
        self._reader.unfollow(buffer)
        if buffer.open and not self._reader.follows(buffer.request):
            self._abandoned.add(buffer.request)


class AbandonedRequests:
    """Tells the pool which requests nobody at this gateway follows any more.

    `follows`: whether this gateway has a follower of a request, perhaps a new one.
    """

    def __init__(self, pool: RequestPool, gateway: str, follows: Callable[[str], bool]) -> None:
        self._pool = pool
        self._gateway = gateway
        self._follows = follows
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def add(self, request: str) -> None:
        """Detach from a request in the background, unless it is followed again."""
        if not self._stopped and request not in self._tasks:
            self._tasks[request] = start(self._detach(request), f"abandoning {request}")

    async def settled(self, request: str) -> None:
        """Wait until no detach of the request is in progress. To be called as a follower of the request, before the
        pool is told of it: a late detach would undo that."""
        while task := self._tasks.get(request):
            await asyncio.wait([task])

    async def stop(self) -> None:
        """The gateway stops. The pool learns of that, so later requests need no detach."""
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=PAUSE)
        for task in self._tasks.values():
            task.cancel()

    async def _detach(self, request: str) -> None:
        try:
            for _ in range(TRIES):
                if self._follows(request):
                    return None
                try:
                    return await self._pool.detach(self._gateway, request)
                except PoolUnavailable:
                    pass
                except Exception:
                    log.exception("detaching from request %s failed; it is tried again", request)
                await asyncio.sleep(PAUSE)
            log.warning("request %s could not be abandoned: the pool is unavailable", request)
        finally:
            del self._tasks[request]


def _as_requested(plan: Plan, validated: ValidatedRequest) -> Plan:
    """The stored plan with the stream options of this follower."""
    given = validated.plan
    return replace(plan, include_usage=given.include_usage, continuous_usage=given.continuous_usage)


async def _watch(receive: Receive, buffer: EventBuffer) -> None:
    """Fail the buffer when the client disconnects, or when the server cannot report it any more (Serve's proxy
    died)."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:
        log.debug("the connection of the client cannot be watched any more: %r", error)
    buffer.fail(ClientGone())
