"""Following requests of one pool: `Generations` submits a request or finds it there, and opens a `Generation` of it,
a follower that yields the request's events until all its choices have ended.

`AbandonedRequests` reports to the pool when a request has no follower at this gateway any more. `ReadSlots` limits how
many stored requests of a tenant are read at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import ParamSpec, Protocol, Self, TypeVar

from starlette.types import Receive

from gateway.answer.plan import Plan
from gateway.errors import ApiError, ClientGone, Kind, pool_refusal
from gateway.executor import FairExecutor
from gateway.http.headers import Position
from gateway.pool_client.event_reader import PATIENCE, EventBuffer, EventReader
from gateway.pool_client.request_record import RequestLatency, RequestRecord, RequestRecords
from gateway.validation import ValidatedRequest
from services.background import start
from services.errors import PoolUnavailable
from services.logs import about
from services.messages import Group, Logprobs, TokenEvent
from services.metrics import Counters
from services.pool.pool import RequestPool

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE = 4  # per tenant: a quarter of the connections to the pool
MOST_WAITING = 1024  # per tenant, including current reads
EVENT, ENTRY = 64, 8  # cost of a token event and of one of its log probabilities, in bytes of a body
MOST_FOLLOWERS = 64  # per request and gateway: each follower costs as much as the request's events
LOOKS = 20  # lookups within `PATIENCE` seconds for a request that a gateway may be about to put back
TRIES, PAUSE = 60, 1.0  # tries to abandon a request and seconds between them: the pool may be unavailable

log = logging.getLogger(__name__)


class Generations:
    """Submits, finds and follows requests of one pool. `receive`, in every method, reports when the client disconnects;
    None: the caller closes the generation."""

    def __init__(
        self,
        pool: RequestPool,
        reader: EventReader,
        abandoned: AbandonedRequests,
        counters: Counters,
        executor: FairExecutor,
        records: RequestRecords,
        waits_for: Callable[[], str] = str,
    ) -> None:
        """`waits_for`: see `Generation`."""
        self._pool = pool
        self._reader = reader
        self._abandoned = abandoned
        self._counters = counters
        self._executor = executor
        self._records = records
        self._waits_for = waits_for
        self._slots = ReadSlots()

    async def submit(
        self, validated: ValidatedRequest, receive: Receive | None, arrived_at: float | None, queue: str | None = None
    ) -> Generation:
        """Submit a request and follow it. `arrived_at`: in seconds of the loop's clock; None: its latency is not
        measured. `queue`: the queue for work on its answer; by default the tenant's.

        If the idempotency key is known, the earlier request with that key is followed from its first token, also if
        the same body has become another prompt since. Raises ApiError if the pool is full, the wait too long, the
        idempotency key that of another request, or the request has too many followers; PoolUnavailable.
        """
        opened = await self._submit(validated, receive, arrived_at, queue)
        if isinstance(opened, Generation):
            return opened
        return await self._follow(opened, _as_requested(Plan.unpack(opened.body), validated), receive)

    async def _submit(
        self, validated: ValidatedRequest, receive: Receive | None, arrived_at: float | None, queue: str | None = None
    ) -> Generation | Group:
        """Submit a request and follow it. The group, which is not followed, if the idempotency key names one with
        another id that asked for the same. Raises as `submit` does."""
        submission, plan = validated.submission, validated.plan
        request = submission.request
        self._check_followers(request)
        record = self._records.submitted(submission, plan, arrived_at)
        if record:
            submission = record.traced(submission)
        slot: ExitStack | None = None
        latency = None if arrived_at is None else RequestLatency(self._counters, arrived_at, submission)
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
                self._close(buffer)  # nothing was submitted, and what follows is recorded under the earlier request
                return group
            if reply.existed:
                group = await self._group(request, submission.tenant)
                plan, latency = _as_requested(Plan.unpack(group.body), validated), None
                if record:
                    record.continues(group.trace)
                slot = await self._catch_up(buffer, submission.tenant)
            buffer.submitted = True
        except BaseException as error:
            self._close(buffer)  # whether the submission arrived is unknown
            if record:
                record.failed(error)
            raise
        work = self._work(queue or submission.tenant)
        return Generation(plan, buffer, self._close, receive, work, latency, slot, record, self._waits_for)

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
        self, validated: ValidatedRequest, position: Position, receive: Receive | None, arrived_at: float
    ) -> Generation:
        """Follow the request that `position` names, which must have asked for the same as `validated`.

        If the pool no longer knows it, it is submitted again, provided that the idempotency key gives it the same id:
        its tokens will be the same. Raises ApiError as `follow` does, and if `validated` asks for something else.
        """
        submission = validated.submission
        if position.request == submission.request:
            opened = await self._submit(validated, receive, arrived_at)
            if isinstance(opened, Generation):
                return opened
            raise not_found(position.request)
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
        work = self._work(group.tenant)
        return Generation(plan, buffer, self._close, receive, work, None, slot, record, self._waits_for)

    async def _catch_up(self, buffer: EventBuffer, tenant: str) -> ExitStack:
        """Read what the pool has stored. The slot is held until an answer is made of it; it is closed here if nothing
        is stored."""
        slot = await self._slots.acquire(tenant)
        try:
            await self._reader.catch_up(buffer)
        except BaseException:
            slot.close()
            raise
        if not buffer.unread:
            slot.close()
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
            raise not_found(request)
        return group

    async def _look_up(self, request: str, tenant: str) -> Group | None:
        with await self._slots.acquire(tenant):
            return await self._pool.group(request)

    def _close(self, buffer: EventBuffer) -> None:
        self._reader.unfollow(buffer)
        if buffer.open and not self._reader.follows(buffer.request):
            self._abandoned.add(buffer.request)


def not_found(request: str) -> ApiError:
    """The error of an id that names no request."""
    return ApiError(Kind.REQUEST_NOT_FOUND, f"There is no request '{request[:100]}' (any more).")


def _as_requested(plan: Plan, validated: ValidatedRequest) -> Plan:
    """The stored plan with the stream options of this follower."""
    given = validated.plan
    return replace(plan, include_usage=given.include_usage, continuous_usage=given.continuous_usage)


class Work(Protocol):
    """The result of `function`, which handles about `size` bytes; in a thread if these are many."""

    async def __call__(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


def size_of(events: Sequence[TokenEvent]) -> int:
    """The cost of making an answer of these events, in bytes of a body of the same cost."""
    return EVENT * len(events) + sum([ENTRY * _entries(e.logprobs) for e in events if e.logprobs is not None])


def _entries(logprobs: Logprobs) -> int:
    scored = 0 if logprobs.prompt is None else len(logprobs.prompt.tokens) + len(logprobs.prompt.top_ids)
    return 1 + len(logprobs.top) + scored + len(logprobs.vector) // 4


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
        slot: ExitStack | None = None,
        record: RequestRecord | None = None,
        waits_for: Callable[[], str] = str,
    ) -> None:
        """`work` runs slow functions off the event loop. `slot` is closed when the stored events are handled.
        `waits_for` returns why no request of the pool can run now, or nothing."""
        self.request = buffer.request
        self.waits_for = waits_for
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
            self._slot.close()

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


class ReadSlots:
    """Limits the concurrent reads of stored requests per tenant. Slots are acquired in the order of the calls.

    A request that is followed from its first token is read and written as a whole by each follower. Without a limit,
    the followers of one tenant would take all connections to the pool and hold everything that they read in memory.
    """

    def __init__(self) -> None:
        self._reads: Counter[str] = Counter()  # current and waiting reads by tenant
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def acquire(self, tenant: str) -> ExitStack:
        """A slot, which can be closed repeatedly. Raises ApiError if too many reads of the tenant wait."""
        reads = self._reads[tenant]
        if reads >= MOST_WAITING:
            text = f"{reads} reads of stored requests of yours wait at this gateway, the maximum; try again later."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)
        self._reads[tenant] += 1
        slots = self._slots.setdefault(tenant, asyncio.Semaphore(AT_ONCE))
        with ExitStack() as slot:
            slot.callback(self._forget, tenant)
            await slots.acquire()
            slot.callback(slots.release)
            return slot.pop_all()

    def _forget(self, tenant: str) -> None:
        self._reads[tenant] -= 1
        if not self._reads[tenant]:
            del self._reads[tenant], self._slots[tenant]
