"""Following requests of one pool: `Generations` submits a request or finds it there, and opens a `Generation` of it.

`AbandonedRequests` reports to the pool when a request has no follower at this gateway any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from starlette.types import Receive

from gateway.answer.plan import Plan
from gateway.errors import ApiError, Kind, pool_refusal
from gateway.executor import FairExecutor
from gateway.http.headers import Position
from gateway.pool_client.event_buffer import EventBuffer
from gateway.pool_client.event_reader import PATIENCE, EventReader
from gateway.pool_client.generation import Generation, Work
from gateway.pool_client.latency import RequestLatency
from gateway.pool_client.read_slots import ReadSlot, ReadSlots
from gateway.pool_client.request_record import RequestRecords
from gateway.validation import ValidatedRequest
from services.background import start
from services.errors import PoolUnavailable
from services.logs import about
from services.messages import Group
from services.metrics import Counters
from services.pool.pool import RequestPool

MOST_FOLLOWERS = 64  # per request and gateway: each follower costs as much as the request's events
LOOKS = 20  # lookups within `PATIENCE` seconds for a request that a gateway may be about to put back
TRIES, PAUSE = 60, 1.0  # tries to abandon a request and seconds between them: the pool may be unavailable

log = logging.getLogger(__name__)


class Generations:
    """`receive`, in every method, reports when the client disconnects; None: the caller closes the generation."""

    def __init__(
        self,
        pool: RequestPool,
        reader: EventReader,
        abandoned: AbandonedRequests,
        counters: Counters,
        executor: FairExecutor,
        records: RequestRecords,
    ) -> None:
        self._pool = pool
        self._reader = reader
        self._abandoned = abandoned
        self._counters = counters
        self._executor = executor
        self._records = records
        self._slots = ReadSlots()

    async def submit(
        self, validated: ValidatedRequest, receive: Receive | None, received: float | None, queue: str | None = None
    ) -> Generation:
        """Submit a request and follow it. `received`: the time of the loop's clock at which it arrived; None: its
        latency is not measured. `queue`: the queue for work on its answer; by default the tenant's.

        If the idempotency key is known, the earlier request with that key is followed from its first token, also if
        the same body has become another prompt since. Raises ApiError if the pool is full, the wait too long, the
        idempotency key that of another request, or the request has too many followers; PoolUnavailable.
        """
        try:
            return await self._submit(validated, receive, received, queue)
        except _Earlier as earlier:
            plan = Plan.unpack(earlier.group.body)
            return await self._follow(earlier.group, _as_requested(plan, validated), receive)

    async def _submit(
        self, validated: ValidatedRequest, receive: Receive | None, received: float | None, queue: str | None = None
    ) -> Generation:
        """The same; raises _Earlier if the idempotency key names a request with another id."""
        submission, plan = validated.submission, validated.plan
        request = submission.request
        self._check_followers(request)
        record = self._records.submitted(submission, plan, received)
        if record:
            submission = record.traced(submission)
        slot: ReadSlot | None = None
        latency = None if received is None else RequestLatency(self._counters, received, submission)
        buffer = self._reader.follow(request, [s.id for s in submission.sequences], submission)
        try:
            await self._abandoned.settled(request)
            began = asyncio.get_running_loop().time()
            reply = await self._pool.submit(submission)
            if record:
                record.in_pool(began)
            if reply.refused is not None:
                raise pool_refusal(reply.refused)
            if reply.request != request:
                self._abandoned.add(reply.request)
                group = await self._group(reply.request, submission.tenant)
                if Plan.unpack(group.body).digest != plan.digest:
                    raise ApiError(Kind.KEY_REUSED, "This 'Idempotency-Key' was used with another request.")
                raise _Earlier(group)
            if reply.existed:
                group = await self._group(request, submission.tenant)
                plan, latency = _as_requested(Plan.unpack(group.body), validated), None
                if record:
                    record.continues(group.trace)
                slot = await self._catch_up(buffer, submission.tenant)
            buffer.submitted = True
        except _Earlier:
            self._close(buffer)  # nothing was submitted, and what follows is recorded under the earlier request
            raise
        except BaseException as error:
            self._close(buffer)  # whether the submission arrived is unknown
            if record:
                record.failed(error)
            raise
        work = self._work(queue or submission.tenant)
        return Generation(plan, buffer, self._close, receive, work, latency, slot, record)

    async def follow(self, request: str, tenant: str, receive: Receive | None) -> Generation:
        """Follow a request by its id from its first token, wherever it was submitted.

        Raises ApiError if the pool does not hold it or it belongs to another tenant, if it has too many followers, or
        if too many reads of the tenant wait; PoolUnavailable. If the pool loses the request later and no gateway puts
        it back within `PATIENCE` seconds, `take` raises ApiError.
        """
        group = await self._group(request, tenant)
        return await self._follow(group, Plan.unpack(group.body), receive)

    async def cancel(self, request: str, tenant: str) -> None:
        """Cancel a request by its id, wherever it was submitted; its followers are told. Nothing happens if it has
        ended. Raises ApiError if the pool does not hold it or it belongs to another tenant; PoolUnavailable."""
        await self._pool.cancel((await self._group(request, tenant)).request)

    async def resume(
        self, validated: ValidatedRequest, position: Position, receive: Receive | None, received: float
    ) -> Generation:
        """Follow the request that `position` names, which must have asked for the same as `validated`.

        If the pool no longer knows it, it is submitted again, provided that the idempotency key gives it the same id:
        its tokens will be the same. Raises ApiError as `follow` does, and if `validated` asks for something else.
        """
        submission = validated.submission
        if position.request == submission.request:
            try:
                return await self._submit(validated, receive, received)
            except _Earlier:
                raise _not_found(position.request) from None
        group = await self._group(position.request, submission.tenant)
        plan = Plan.unpack(group.body)
        if plan.digest != validated.plan.digest:
            text = f"'Last-Event-ID' names request '{position.request}', which asked for something else."
            raise ApiError(Kind.INVALID, text, "Last-Event-ID")
        return await self._follow(group, _as_requested(plan, validated), receive)

    async def _follow(self, group: Group, plan: Plan, receive: Receive | None) -> Generation:
        self._check_followers(group.request)
        buffer = self._reader.follow(group.request, group.sequences)
        try:
            await self._abandoned.settled(group.request)
            slot = await self._catch_up(buffer, group.tenant)
        except BaseException:
            self._close(buffer)
            raise
        record = self._records.resumed(group, plan)
        return Generation(plan, buffer, self._close, receive, self._work(group.tenant), slot=slot, record=record)

    async def _catch_up(self, buffer: EventBuffer, tenant: str) -> ReadSlot:
        """Read what the pool has stored. The slot is held until an answer is made of it; it is released here if nothing
        is stored."""
        slot = await self._slots.acquire(tenant)
        try:
            await self._reader.catch_up(buffer)
        except BaseException:
            slot.release()
            raise
        if not buffer.unread:
            slot.release()
        return slot

    def _work(self, queue: str) -> Work:
        return partial(self._executor.run_answer, queue)

    def _check_followers(self, request: str) -> None:
        followers = len(self._reader.followers(request))
        if followers >= MOST_FOLLOWERS:
            text = f"Request '{request}' has {followers} followers at this gateway, the maximum."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)

    async def _group(self, request: str, tenant: str) -> Group:
        group = await self._look_up(request, tenant)
        for _ in range(LOOKS):
            if group is not None or self._reader.settled:
                break
            await asyncio.sleep(PATIENCE / LOOKS)
            group = await self._look_up(request, tenant)
        if group is None or group.tenant != tenant:
            raise _not_found(request)
        return group

    async def _look_up(self, request: str, tenant: str) -> Group | None:
        with await self._slots.acquire(tenant):
            return await self._pool.group(request)

    def _close(self, buffer: EventBuffer) -> None:
        self._reader.unfollow(buffer)
        if buffer.open and not self._reader.follows(buffer.request):
            self._abandoned.add(buffer.request)


class AbandonedRequests:
    """Reports to the pool which requests have no follower at this gateway any more.

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
                    return await self._pool.unlisten(self._gateway, request)
                except PoolUnavailable:
                    pass
                except Exception:
                    log.exception("detaching from request %s failed; it is tried again", request, extra=about(request))
                await asyncio.sleep(PAUSE)
            text = "request %s could not be abandoned: the pool is unavailable"
            log.warning(text, request, extra=about(request))
        finally:
            del self._tasks[request]


class _Earlier(Exception):
    """The idempotency key names `group`, which asked for the same and had become another request."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.request)
        self.group = group


def _not_found(request: str) -> ApiError:
    return ApiError(Kind.REQUEST_NOT_FOUND, f"There is no request '{request[:100]}' (any more).")


def _as_requested(plan: Plan, validated: ValidatedRequest) -> Plan:
    """The stored plan with the stream options of this follower."""
    given = validated.plan
    return replace(plan, include_usage=given.include_usage, continuous_usage=given.continuous_usage)
