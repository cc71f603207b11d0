"""One gateway process: its parts, and their life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets

from starlette.requests import HTTPConnection

from gateway.batches.folder import BatchFolders
from gateway.desk import Desk
from gateway.door import Door
from gateway.errors import ApiError, GatewayStops, Kind
from gateway.files.store import FileStore
from gateway.generations import Generations
from gateway.heartbeat import Heartbeat
from gateway.leaving import Leaving
from gateway.model import ServedModel
from gateway.put_back import PutBack
from gateway.reader import Reader
from services.background import persist, start
from services.config import Settings
from services.errors import PoolUnavailable
from services.messages import EngineFigures
from services.overview import Overview
from services.pool.pool import RequestPool
from services.telemetry import Counters

RECONNECT = 0.5  # seconds

log = logging.getLogger(__name__)


class Gateway:
    """Its id is random: a restarted gateway is another one."""

    def __init__(self, pool: RequestPool, model: ServedModel, settings: Settings) -> None:
        self.id = secrets.token_hex(8)
        self.pool = pool
        self.model = model
        self.settings = settings
        self.counters = Counters()
        self.reader = Reader(pool, self.id)
        self.heartbeat = Heartbeat(pool, self.id, self.counters, self.reader.restart)
        self.leaving = Leaving(pool, self.id, self.reader.follows)
        self.put_back = PutBack(pool, self.reader, self.leaving)
        self.desk = Desk()
        self.generations = Generations(pool, self.reader, self.leaving, self.counters, self.desk)
        self.door = Door(self.id, model, settings)
        self.files = FileStore(settings.files_folder, settings.max_file_bytes, settings.max_tenant_bytes)
        self.batches = BatchFolders(settings.files_folder)

    def overview(self) -> Overview:
        """The pool as of the last second, at no cost to it. Raises PoolUnavailable while it is away."""
        if self.reader.away:
            raise PoolUnavailable("the pool is away")
        return self.heartbeat.known()

    async def figures(self) -> EngineFigures:
        """What the largest engine can take. Raises ApiError while there has not been an engine, PoolUnavailable."""
        figures = await self.heartbeat.figures()
        if figures is None:
            raise ApiError(Kind.NO_ENGINE, "No engine has been attached yet; try again later.")
        return figures

    async def start(self) -> None:
        """Begin to live; a pool that is away is waited for in the background."""
        self._life = start(self._live(), "the gateway")

    async def stop(self) -> None:
        """Stop reading, break the streams that are open, and say goodbye to the pool if it is there."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        await self.leaving.stop()
        self.reader.fail_all(GatewayStops())
        with contextlib.suppress(PoolUnavailable):
            await self.pool.unregister(self.id)
        await self.pool.close()
        self.desk.close()

    @property
    def alive(self) -> bool:
        """Whether its parts run. One that has started and does not would submit requests and hear no token of them."""
        return not self._life.done()

    async def _live(self) -> None:
        await self._connect()
        await asyncio.gather(persist(self.heartbeat.run), persist(self.reader.run), persist(self.put_back.run))

    async def _connect(self) -> None:
        while True:
            try:
                return await self.pool.connect()
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
            except Exception:
                log.exception("connecting to the pool failed; it is tried again")
            await asyncio.sleep(RECONNECT)


def of(connection: HTTPConnection) -> Gateway:
    """The gateway that this request came to."""
    gateway: Gateway = connection.app.state.gateway
    return gateway
