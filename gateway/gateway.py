"""One gateway process: its parts and their life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import HTTPConnection

from gateway.batches.folder import BatchFolders
from gateway.errors import ApiError, GatewayStops, Kind
from gateway.executor import FairExecutor
from gateway.files.store import FileStore
from gateway.live.feed import LiveFeed
from gateway.model import ServedModel
from gateway.pool_client.event_reader import EventReader
from gateway.pool_client.following import AbandonedRequests, Generations
from gateway.pool_client.heartbeat import Heartbeat
from gateway.pool_client.recovery import Recovery
from gateway.pool_client.request_record import RequestRecords
from gateway.validation import Validator
from services.background import keep_running, start
from services.errors import PoolUnavailable
from services.messages import EngineFigures
from services.metrics import Counters
from services.overview import Overview
from services.pool.pool import RequestPool
from services.settings.settings import Settings
from services.tracing.tracer import open_tracer

RECONNECT = 0.5  # seconds
STATM = Path("/proc/self/statm")  # sizes of this process in pages, the resident one second

log = logging.getLogger(__name__)


class Gateway:
    """Its id is random: a restarted gateway is a new one."""

    def __init__(self, pool: RequestPool, model: ServedModel, settings: Settings) -> None:
        self.id = secrets.token_hex(8)
        self.pool = pool
        self.model = model
        self.settings = settings
        self.counters = Counters(settings.metrics_tenants)
        self.executor = FairExecutor()
        self.validator = Validator(self.id, model, settings, self.executor, self.figures)
        self.reader = EventReader(pool, self.id)
        self.abandoned = AbandonedRequests(pool, self.id, self.reader.follows)
        self.tracer = open_tracer(settings.otlp_traces_endpoint, "gateway")
        records = RequestRecords(self.tracer, settings.enable_log_requests, model.name, self.id)
        self.generations = Generations(pool, self.reader, self.abandoned, self.counters, self.executor, records)
        self.recovery = Recovery(pool, self.reader, self.abandoned)
        self.heartbeat = Heartbeat(pool, self.id, self.counters, self.gauges, self.reader.restart)
        self.live = LiveFeed(pool.broadcast(), self.heartbeat, model.name, settings.demo)
        self.files = FileStore(settings.files_folder, settings.max_file_bytes, settings.max_tenant_bytes)
        self.batches = BatchFolders(settings.files_folder)

    def gauges(self) -> dict[str, float]:
        """What this gateway reports of itself: see `GATEWAY_GAUGES`."""
        resident = int(STATM.read_text().split()[1]) * resource.getpagesize()
        return {"requests": self.reader.requests, "cpu": time.process_time(), "memory": resident}

    def overview(self) -> Overview:
        """The overview of the last second, at no cost to the pool. Raises PoolUnavailable."""
        if self.reader.pool_unavailable:
            raise PoolUnavailable("the pool is unavailable")
        return self.heartbeat.last_overview()

    async def figures(self) -> EngineFigures:
        """The limits of the largest engine. Raises ApiError until there has been an engine; PoolUnavailable."""
        figures = await self.heartbeat.figures()
        if figures is None:
            raise ApiError(Kind.NO_ENGINE, "No engine has been attached yet; try again later.")
        return figures

    @contextlib.contextmanager
    def rejections_counted(self) -> Iterator[None]:
        """Count the ApiError with which a request is rejected, if any."""
        try:
            yield
        except ApiError as error:
            self.counters.inc("vllm:admission_rejections", reason=error.kind.name.lower())
            raise

    async def start(self) -> None:
        """Start the parts in the background, where they wait for a pool that is unavailable."""
        self._life = start(self._live(), "the gateway")

    async def stop(self) -> None:
        """Stop reading, close the open streams, and unregister from the pool if it is available."""
        await self.live.stop()
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await self.abandoned.stop()
        self.reader.fail_all(GatewayStops())
        with contextlib.suppress(PoolUnavailable):
            await self.pool.unregister(self.id)
        await self.pool.close()
        if self.tracer:
            await asyncio.to_thread(self.tracer.close)
        self.executor.close()

    @property
    def alive(self) -> bool:
        """Whether the parts run. A gateway whose parts have ended would submit requests and receive no tokens."""
        return not self._life.done()

    async def _live(self) -> None:
        await self._connect()
        await asyncio.gather(
            keep_running(self.heartbeat.run), keep_running(self.reader.run), keep_running(self.recovery.run)
        )

    async def _connect(self) -> None:
        while True:
            try:
                return await self.pool.connect()
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
            except Exception:
                log.exception("connecting to the pool failed; it is tried again")
            await asyncio.sleep(RECONNECT)


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that received this request."""
    gateway: Gateway = connection.app.state.gateway
    return gateway
