"""BatchRun: one batch at the gateway that owns it just now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.batches.answering import LineAnswerer
from gateway.batches.folder import BatchFolder
from gateway.batches.journal import Work
from gateway.batches.record import BatchRecord, Status
from gateway.batches.segments import Answered
from gateway.files import disk
from gateway.gateway import Gateway
from gateway.http.json_size import most_values
from services.errors import PoolUnavailable

T = TypeVar("T")

PERIOD = 1.0  # seconds between looks at cancellation and expiry, and between reports of progress
PORTION = 64  # lines that are read at once

log = logging.getLogger(__name__)


class BatchRun:
    """Feeds the lines that have no answer yet, no more at once than `places` has, and ends the batch."""

    def __init__(
        self, gateway: Gateway, folder: BatchFolder, record: BatchRecord, epoch: str, places: asyncio.Semaphore
    ) -> None:
        self._gateway = gateway
        self._folder = folder
        self._record = record
        self._epoch = epoch
        self._places = places
        self._requests: dict[int, str] = {}  # of lines that are being answered
        self._answered: asyncio.Queue[tuple[Answered, asyncio.Future[None]]] = asyncio.Queue()
        self._disk = asyncio.Lock()

    async def run(self) -> None:
        """To the batch's end. It may be cancelled at any moment: what was answered is on disk, whoever goes on."""
        gateway, lines = self._gateway, self._gateway.settings.max_batch_lines
        values = most_values(gateway.model.info.max_model_len)
        work = await disk.in_thread(Work, self._folder, self._record, gateway.files, self._epoch, lines, values)
        try:
            if work.wrong:
                await self._off_loop(work.fail)
                return
            await self._off_loop(work.save_progress)
            status = await self._answer_all(work)
            await self._off_loop(work.finish, status)
        finally:
            work.close()

    async def _answer_all(self, work: Work) -> Status:
        """Until all is answered, or the batch is to end before."""
        if (status := await self._off_loop(self._early_end)) is not None:
            await self._name_requests(work)
            await self._cancel_requests()
            return status
        feeding, writing = asyncio.create_task(self._feed(work)), asyncio.create_task(self._write(work))
        try:
            while True:
                await asyncio.wait({feeding, writing}, timeout=PERIOD, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    writing.result()
                if feeding.done():
                    feeding.result()
                    return "cancelled" if await self._off_loop(self._folder.cancelled_at) is not None else "completed"
                await self._off_loop(work.save_progress)
                if (status := await self._off_loop(self._early_end)) is not None:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
                    await self._cancel_requests()
                    return status
        finally:
            for task in (feeding, writing):
                task.cancel()
            await asyncio.gather(feeding, writing, return_exceptions=True)

    def _early_end(self) -> Status | None:
        if self._folder.cancelled_at() is not None:
            return "cancelled"
        return "expired" if time.time() >= self._record.expires_at else None

    async def _feed(self, work: Work) -> None:
        answerer = LineAnswerer(self._gateway, self._record, self._requests.__setitem__)
        async with asyncio.TaskGroup() as group:
            for numbers in work.lines.portions(work.pending, PORTION):
                lines = await self._off_loop(work.read, numbers)
                for number, line in zip(numbers, lines, strict=True):
                    await self._places.acquire()
                    task = group.create_task(self._line(answerer, number, line))
                    task.add_done_callback(lambda _: self._places.release())

    async def _line(self, answerer: LineAnswerer, number: int, line: bytes) -> None:
        answered = await answerer.answer(number, line)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answered.put_nowait((answered, written))
        await written
        request = self._requests.pop(number, None)
        if request is not None and self._record.endpoint != "/v1/responses":  # those can be retrieved, as any response
            with contextlib.suppress(PoolUnavailable):  # it is forgotten some time after its end anyway
                await self._gateway.pool.delete(request)

    async def _write(self, work: Work) -> None:
        """Answers to disk, as many at once as there are."""
        while True:
            items = [await self._answered.get()]
            while not self._answered.empty():
                items.append(self._answered.get_nowait())
            await self._off_loop(work.append, [answered for answered, _ in items])
            for answered, written in items:
                self._gateway.counters.inc("orca:batch_lines", file="output" if answered.ok else "error")
                if not written.done():
                    written.set_result(None)

    async def _name_requests(self, work: Work) -> None:
        """What an owner before this one has asked for: of lines without an answer the first ones, since they are fed in
        order."""
        answerer = LineAnswerer(self._gateway, self._record, self._requests.__setitem__)
        numbers = work.pending[: self._gateway.settings.lines_in_flight]
        for portion in work.lines.portions(numbers, PORTION):
            for number, line in zip(portion, await self._off_loop(work.read, portion), strict=True):
                await answerer.name(number, line)

    async def _cancel_requests(self) -> None:
        """What runs would go on to its end: nobody else cancels a request in the background."""
        for request in self._requests.values():
            with contextlib.suppress(PoolUnavailable):
                await self._gateway.pool.cancel(request)

    async def _off_loop(self, function: Callable[..., T], *args: Any) -> T:
        """`Work` is for one thread at a time, which also a cancelled caller waits for."""
        async with self._disk:
            call = asyncio.ensure_future(disk.in_thread(function, *args))
            try:
                return await asyncio.shield(call)
            except asyncio.CancelledError:
                await asyncio.wait([call])
                raise
