"""BatchRun: one batch at the gateway that owns it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.batches.folder import BatchFolder
from gateway.batches.journal import BatchJournal
from gateway.batches.line_answerer import LineAnswerer
from gateway.batches.record import BatchRecord
from gateway.batches.segments import LineAnswer
from gateway.endpoints import ENDPOINTS
from gateway.files import disk
from gateway.files.store import FileStore
from gateway.gateway import Gateway
from gateway.schemas.batches import EndStatus
from services.errors import PoolUnavailable

T = TypeVar("T")

PERIOD = 1.0  # seconds between checks of cancellation and expiry, and between reports of progress
PORTION = 64  # lines that are read at once

log = logging.getLogger(__name__)


class BatchRun:
    """Answers the unanswered lines and ends the batch. `slots` limits the lines in flight at this gateway."""

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
        lines, values = self._gateway.settings.max_batch_lines, self._gateway.limits.max_values
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
                await self._gateway.shards.of(request).pool.delete(request)

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
        numbers = journal.pending[: self._gateway.settings.lines_in_flight]
        for portion in journal.lines.portions(numbers, PORTION):
            for number, line in zip(portion, await self._off_loop(journal.read, portion), strict=True):
                await answerer.report_request(number, line)

    async def _cancel_requests(self) -> None:
        """Cancel the requests in flight: a background request would otherwise run to its end."""
        for request in self._requests.values():
            with contextlib.suppress(PoolUnavailable):
                await self._gateway.shards.of(request).pool.cancel(request)

    async def _off_loop(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function` in a thread, one call at a time; a cancelled caller waits for its end too."""
        async with self._disk:
            call = asyncio.ensure_future(disk.in_thread(function, *args))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await asyncio.wait([call])
                raise
