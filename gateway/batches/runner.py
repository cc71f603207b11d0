"""BatchRunner: the part of a gateway that looks for batches without an owner and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter

from gateway.batches.folder import BatchFolder, BatchFolders, BatchRecord, Final
from gateway.batches.lease import LEASE, BatchLease
from gateway.batches.run import BatchRun
from gateway.files import disk
from gateway.files.store import FileStore
from gateway.gateway import Gateway, GatewayProcess
from gateway.schemas.batches import BatchError
from services.background import keep_running, start
from services.errors import PoolUnavailable

PERIOD = 1.0  # seconds between looks
MAX_RUNNING = 8  # batches at once, and the first of each tenant; further ones wait, the oldest first

INPUT_GONE: BatchError = {
    "code": "input_file_gone",
    "message": "The input of this batch is gone from the server's disk.",
    "param": "input_file_id",
    "line": None,
}

log = logging.getLogger(__name__)


class BatchRunner:
    """One gateway owns a batch: the one that holds its name in the pool. The others try each `PERIOD`."""

    def __init__(self, gateway: GatewayProcess, batches: BatchFolders, files: FileStore) -> None:
        self._gateway = gateway
        self._batches = batches
        self._files = files
        self._slots = asyncio.Semaphore(gateway.settings.constants.lines_in_flight)
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._models: dict[str, Gateway] = {}  # of the runs
        self._of_tenant: Counter[str] = Counter()  # the number of runs by the tenant's folder
        self._unreadable: set[str] = set()  # batches that were logged as unreadable

    def start(self) -> None:
        self._life = start(keep_running(self._look), "batches")

    async def stop(self) -> None:
        """Stop running batches; other gateways take them over."""
        tasks = [self._life, *self._runs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            for id, model in self._models.items():
                if model.gone:  # its lines would wait for ever
                    self._runs[id].cancel()
            for folder in await disk.in_thread(lambda: list(self._batches.open())):
                if folder.id not in self._runs and (
                    len(self._runs) < MAX_RUNNING or not self._of_tenant[folder.tenant]
                ):
                    try:
                        await self._try(folder)
                    except Exception:  # it concerns this batch only
                        if folder.id not in self._unreadable:
                            log.exception("batch %s cannot be read; it is tried again each second", folder.id)
                        self._unreadable.add(folder.id)

    async def _try(self, folder: BatchFolder) -> None:
        """Run the batch if no gateway does."""
        record = await disk.in_thread(folder.record)
        if record is None:
            await disk.in_thread(self._batches.forget_uncreated, folder.id)
            return
        models = (each for each in self._gateway.all if not each.gone)
        gateway = next((each for each in models if record.model in each.model.names), None)
        if gateway is None:
            if time.time() < record.expires_at:
                return  # a server of its model may return until then
            gateway = self._gateway.first
        if await disk.in_thread(folder.final) is not None:  # its owner died before it could remove the marker
            await disk.in_thread(self._tidy, folder)
            return
        lease = BatchLease(gateway, folder.id)
        with contextlib.suppress(PoolUnavailable):
            if await lease.take():
                task = start(self._run(gateway, folder, record, lease), f"batch {folder.id}")
                self._runs[folder.id], self._models[folder.id] = task, gateway
                self._of_tenant[folder.tenant] += 1
                task.add_done_callback(lambda _: self._ended(folder))

    def _ended(self, folder: BatchFolder) -> None:
        del self._runs[folder.id], self._models[folder.id]
        self._of_tenant -= Counter([folder.tenant])  # this also removes tenants without runs

    async def _run(self, gateway: Gateway, folder: BatchFolder, record: BatchRecord, lease: BatchLease) -> None:
        batch = BatchRun(gateway, self._files, folder, record, lease.segment, self._slots)
        run = asyncio.create_task(batch.run())
        keeping = asyncio.create_task(lease.keep())
        try:
            await asyncio.wait({run, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                run.result()
                await disk.in_thread(self._tidy, folder)
            else:
                log.warning("batch %s is now owned by another gateway", folder.id)
        except FileNotFoundError:
            if not await disk.in_thread(self._end_without_input, folder):
                log.exception("batch %s cannot be run: a part of it is missing", folder.id)
                await asyncio.sleep(LEASE)
        except Exception:
            log.exception("batch %s failed here; it is tried again", folder.id)
            await asyncio.sleep(LEASE)
        finally:
            for task in (run, keeping):
                task.cancel()
            await asyncio.gather(run, keeping, return_exceptions=True)
            await lease.give_up()

    def _end_without_input(self, folder: BatchFolder) -> bool:
        """Whether the batch has ended. A batch whose input is missing fails."""
        if folder.final() is None:
            if folder.input.exists():
                return False
            log.error("batch %s fails: its input is missing on the disk", folder.id)
            folder.end(Final("failed", int(time.time()), folder.progress(), errors=[INPUT_GONE]))
        self._tidy(folder)
        return True

    def _tidy(self, folder: BatchFolder) -> None:
        folder.tidy()
        self._batches.mark_ended(folder.id)
