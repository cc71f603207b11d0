"""BatchRun: one batch at the gateway that owns it. `LineAnswerer` makes of a line the request that it would be over
HTTP, and of its answer an entry of the output files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from gateway.batches.folder import BatchFolder, BatchRecord
from gateway.batches.journal import BatchJournal, LineAnswer, entry_id
from gateway.endpoints import ENDPOINTS
from gateway.errors import ApiError, GatewayStops, Kind
from gateway.files import disk
from gateway.files.store import FileStore
from gateway.gateway import Gateway
from gateway.http.body import loads, validate
from gateway.http.headers import Caller
from gateway.schemas.batches import EndStatus
from gateway.schemas.generation import GenerationFields
from gateway.schemas.vectors import VectorFields
from gateway.streaming import whole_response
from gateway.validation import digest_of
from services.errors import PoolUnavailable
from services.requests import BATCH_CLASS

T = TypeVar("T")

# temporary errors: the line is tried again
TEMPORARY = {
    Kind.TOO_MANY_LONG,
    Kind.TOO_MANY_FOLLOWERS,
    Kind.POOL_FULL,
    Kind.NO_ENGINE,
    Kind.POOL_UNAVAILABLE,
    Kind.STOPPING,
}
# the line's request was cancelled from outside or its tokens diverged: it is submitted again
BROKEN = {Kind.CANCELLED, Kind.DIVERGED}
PAUSE = 1.0  # seconds between tries
RENEWALS = 3  # new submissions of a broken request before the error becomes the line's answer
PERIOD = 1.0  # seconds between checks of cancellation and expiry, and between reports of progress
PORTION = 64  # lines that are read at once

log = logging.getLogger(__name__)


class BatchRun:
    """Answers the unanswered lines and ends the batch. `gateway` is the model of lines that name none. `slots` limits
    the lines in flight at this gateway."""

    def __init__(
        self,
        gateway: Gateway,
        files: FileStore,
        folder: BatchFolder,
        record: BatchRecord,
        epoch: str,
        slots: asyncio.Semaphore,
    ) -> None:
        self._gateway = gateway
        self._files = files
        self._folder = folder
        self._record = record
        self._epoch = epoch
        self._slots = slots
        self._requests: dict[int, str] = {}  # ids of the requests of lines in flight
        self._answered: asyncio.Queue[tuple[LineAnswer, asyncio.Future[None]]] = asyncio.Queue()
        self._disk = asyncio.Lock()

    async def run(self) -> None:
        """Run until the batch ends. It can be cancelled at any time: the answers are on disk, for the next owner."""
        lines, values = self._gateway.settings.constants.max_batch_lines, self._gateway.process.limits.max_values
        journal = await disk.in_thread(
            BatchJournal, self._folder, self._record, self._files, self._epoch, lines, values
        )
        try:
            if journal.errors:
                await self._off_loop(journal.fail)
                return
            await self._off_loop(journal.save_progress)
            status = await self._answer_all(journal)
            await self._off_loop(journal.finish, status)
        finally:
            journal.close()

    async def _answer_all(self, journal: BatchJournal) -> EndStatus:
        """Answer the lines until all are answered or the batch ends early."""
        if (status := await self._off_loop(self._early_end)) is not None:
            await self._find_requests(journal)
            await self._cancel_requests()
            return status
        feeding, writing = asyncio.create_task(self._feed(journal)), asyncio.create_task(self._write(journal))
        try:
            while True:
                await asyncio.wait({feeding, writing}, timeout=PERIOD, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
                if feeding.done():
                    feeding.result()
                    return "cancelled" if await self._off_loop(self._folder.cancelled_at) is not None else "completed"
                await self._off_loop(journal.save_progress)
                if (status := await self._off_loop(self._early_end)) is not None:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
                    await self._cancel_requests()
                    return status
        finally:
            for task in (feeding, writing):
                task.cancel()
            await asyncio.gather(feeding, writing, return_exceptions=True)

    def _early_end(self) -> EndStatus | None:
        if self._folder.cancelled_at() is not None:
            return "cancelled"
        return "expired" if time.time() >= self._record.expires_at else None

    async def _feed(self, journal: BatchJournal) -> None:
        answerer = LineAnswerer(self._gateway, self._record, self._requests.__setitem__)
        async with asyncio.TaskGroup() as group:
            for numbers in journal.lines.portions(journal.pending, PORTION):
                lines = await self._off_loop(journal.read, numbers)
                for number, line in zip(numbers, lines, strict=True):
                    await self._slots.acquire()
                    task = group.create_task(self._line(answerer, number, line))
                    task.add_done_callback(lambda _: self._slots.release())

    async def _line(self, answerer: LineAnswerer, number: int, line: bytes) -> None:
        answered = await answerer.answer(number, line)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answered.put_nowait((answered, written))
        await written
        request = self._requests.pop(number, None)
        if request is not None and not ENDPOINTS[self._record.endpoint].stored:
            with contextlib.suppress(PoolUnavailable):  # the pool forgets it after a while
                await self._gateway.process.of(request).shards.of(request).pool.delete(request)

    async def _write(self, journal: BatchJournal) -> None:
        """Write answers to disk, all waiting ones at once."""
        while True:
            items = [await self._answered.get()]
            while not self._answered.empty():
                items.append(self._answered.get_nowait())
            await self._off_loop(journal.append, [answered for answered, _ in items])
            for answered, written in items:
                self._gateway.counters.inc("orca:batch_lines", file="output" if answered.ok else "error")
                if not written.done():
                    written.set_result(None)

    async def _find_requests(self, journal: BatchJournal) -> None:
        """Find the requests of an earlier owner: those of the first unanswered lines, since lines are fed in order."""
        answerer = LineAnswerer(self._gateway, self._record, self._requests.__setitem__)
        numbers = journal.pending[: self._gateway.settings.constants.lines_in_flight]
        for portion in journal.lines.portions(numbers, PORTION):
            for number, line in zip(portion, await self._off_loop(journal.read, portion), strict=True):
                await answerer.report_request(number, line)

    async def _cancel_requests(self) -> None:
        """Cancel the requests in flight: a background request would otherwise run to its end."""
        for request in self._requests.values():
            with contextlib.suppress(PoolUnavailable):
                await self._gateway.process.of(request).shards.of(request).pool.cancel(request)

    async def _off_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` in a thread, one call at a time; a cancelled caller waits for its end too."""
        async with self._disk:
            call = asyncio.ensure_future(disk.in_thread(function, *args))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await asyncio.wait([call])
                raise


class LineAnswerer:
    """Answers the lines of one batch. `on_request` is called with the number of a line and the id of its request."""

    def __init__(self, gateway: Gateway, record: BatchRecord, on_request: Callable[[int, str], None]) -> None:
        self._gateway = gateway
        self._record = record
        self._endpoint = ENDPOINTS[record.endpoint]
        self._on_request = on_request
        self._queue = f"{record.tenant}\0batches"  # apart from the queue of the tenant's own requests

    async def answer(self, number: int, line: bytes) -> LineAnswer:
        """The answer to line `number`. Waits for an engine, for the pool and for room in it.

        The request's id and seed are functions of batch and line. So a line that is submitted again finds its first
        request, or creates one with the same tokens.
        """
        value = await self._read(line)
        broken = 0
        while True:
            try:
                request, body = await self._request(number, len(line), value["body"])
                return self._entry(number, value["custom_id"], 200, request, body)
            except ApiError as error:
                if error.kind in BROKEN and broken < RENEWALS:
                    broken += 1
                elif error.kind not in TEMPORARY:
                    status, body = error.kind.status, orjson.dumps(error.body())
                    return self._entry(number, value["custom_id"], status, entry_id(self._record.id, number), body)
            except (PoolUnavailable, GatewayStops) as error:
                log.debug("line %d of %s waits: %r", number, self._record.id, error)
            except Exception:
                log.exception("line %d of %s failed", number, self._record.id)
                body = orjson.dumps(ApiError(Kind.INTERNAL, "Internal error; the server's log says more.").body())
                return self._entry(number, value["custom_id"], 500, entry_id(self._record.id, number), body)
            await asyncio.sleep(PAUSE)

    async def report_request(self, number: int, line: bytes) -> None:
        """Call `on_request` with the request that this line becomes or has become, if it is a valid request."""
        value = await self._read(line)
        caller = self._caller(number, len(line))
        with contextlib.suppress(ApiError):
            fields = await self._fields(value["body"], caller)
            gateway, _ = await self._named(fields, caller)
            self._on_request(number, self._placed(gateway, self._request_name(fields, caller), caller))

    async def _read(self, line: bytes) -> dict[str, Any]:
        """The parsed line, which was checked with the file. Waits for its turn off the event loop."""
        executor, most = self._gateway.executor, self._gateway.process.limits.max_values
        while True:
            try:
                return await executor.run(self._queue, len(line), loads, line, most)
            except ApiError as error:
                if error.kind is not Kind.TOO_MANY_LONG:
                    raise
            await asyncio.sleep(PAUSE)

    async def _request(self, number: int, size: int, body: dict[str, Any]) -> tuple[str, bytes]:
        """The id of the request and the JSON of its answer. `size`: bytes of the line. Raises ApiError,
        PoolUnavailable."""
        limit = self._gateway.process.limits.max_bytes
        if size > limit:
            raise ApiError(Kind.BODY_TOO_LARGE, f"The line is longer than the {limit} bytes this server takes.")
        caller = self._caller(number, size)
        fields = await self._fields(body, caller)
        gateway, caller = await self._named(fields, caller)
        validated = await self._endpoint.validate(gateway, fields, caller)
        # a line waits while there are other requests; the batch's window is its only deadline
        submission = replace(validated.submission, priority=BATCH_CLASS, idempotency_key=None, queue_timeout=0.0)
        request = self._placed(gateway, submission.request, caller)
        validated = replace(validated, submission=submission)
        self._on_request(number, request)
        try:
            generation = await gateway.shards.submit(validated, None, None, caller.work_queue)
            request = generation.request  # another one if it is in the shard that had the slot before
            self._on_request(number, request)
            answer = await self._endpoint.answer(gateway, generation, caller.work_queue)
            return request, bytes((await whole_response(generation, answer)).body)
        except ApiError as error:
            if error.kind in BROKEN:
                await gateway.process.of(request).shards.of(request).pool.delete(request)
            if error.kind is Kind.REQUEST_NOT_FOUND:
                raise PoolUnavailable(f"the pool lost {request} between two calls") from error
            raise

    def _caller(self, number: int, size: int) -> Caller:
        # the request's id and seed are made of the key; no client can send it, because headers cannot contain NUL
        key = f"\0{self._record.id}\0{number}"
        return Caller(
            self._record.tenant,
            key,
            resumable=True,
            background=True,
            size=size,
            queue=self._queue,
            named_by_fields=True,  # known before the line is validated; nobody resumes its stream
        )

    async def _named(self, fields: GenerationFields | VectorFields, caller: Caller) -> tuple[Gateway, Caller]:
        """The model of a line, the one that it names or else that of the batch, and the caller with its adapter. Raises
        ApiError if there is none; PoolUnavailable."""
        if fields.model is None:
            return self._gateway, caller
        earlier = self._placed(self._gateway, self._request_name(fields, caller), caller)
        return await self._gateway.process.called(fields.model, caller, earlier)

    def _request_name(self, fields: GenerationFields | VectorFields, caller: Caller) -> str:
        return self._endpoint.kind.prefix + caller.request_name(digest_of(fields))

    def _placed(self, gateway: Gateway, request: str, caller: Caller) -> str:
        """The id of a line's request in its shard."""
        assert caller.slot is not None, "a line has a key"
        return gateway.shards.placed(request, caller.slot)

    async def _fields(self, body: dict[str, Any], caller: Caller) -> GenerationFields | VectorFields:
        return await self._gateway.executor.run(caller.work_queue, caller.size, self._parsed, body)

    def _parsed(self, body: dict[str, Any]) -> GenerationFields | VectorFields:
        fields: GenerationFields | VectorFields = validate(
            self._endpoint.schema, body, self._gateway.process.limits.ignore_unknown
        )
        if fields.stream:
            raise ApiError(Kind.INVALID, "Invalid 'stream': a line of a batch is answered as a whole.", "stream")
        return fields

    def _entry(self, number: int, custom_id: str, status: int, request: str, body: bytes) -> LineAnswer:
        response = {"status_code": status, "request_id": request, "body": orjson.Fragment(body)}
        id = entry_id(self._record.id, number)
        entry = {"id": id, "custom_id": custom_id, "response": response, "error": None}
        return LineAnswer(number, status == 200, orjson.dumps(entry))
