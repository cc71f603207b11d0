"""The scheduler's Serve replica: takes a seat, attaches its engine, runs the EngineLoop; again, when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import Any

from actors.engine_link import EngineLink
from actors.placement import attach, cluster_id
from actors.pool import open_pool
from actors.seat import Seat, hold, take_seat
from services.clock import RealClock
from services.config import load
from services.errors import EngineLost, PoolUnavailable, StaleEpoch
from services.loop import EngineLoop
from services.messages import EngineFigures
from services.models import ModelInfo, resolve
from services.pool import RequestPool
from services.scheduling import RequestLevelScheduler, Scheduler
from services.telemetry import Counters
from services.text import TextTables
from services.wire import unpack

PAUSE = 0.2  # seconds before the next try with an engine that was lost
SIGN_OF_LIFE = 15.0  # seconds between calls that keep an idle engine from ending itself

log = logging.getLogger(__name__)


class SchedulerReplica:
    """Lives in Ray Serve, which restarts, scales and drains it; takes no requests there: all goes through the pool."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._settings = load(**values)
        self._loop: EngineLoop | None = None
        self._draining = False
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_log_death)

    def check_health(self) -> None:
        """Fails only when this scheduler's own life has ended; a dead Redis or engine is waited for."""
        if self._life.done() and not self._draining:
            raise RuntimeError(f"the scheduler ended: {self._life.exception()!r}")

    async def __del__(self) -> None:
        """Drain: finish the iteration, commit it, hand the seat back. The engine stays for the next owner."""
        self._draining = True
        if self._loop is not None:
            self._loop.stop()
        else:
            self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._life

    async def _live(self) -> None:
        folder = await asyncio.to_thread(resolve, self._settings.model, self._settings.cache_dir, log.info)
        self._model, self._text = ModelInfo.load(folder), TextTables.load(folder)
        self._counters = Counters()
        pool = open_pool(self._settings, self._model)
        try:
            while not self._draining:
                await self._own_a_seat(pool)
        finally:
            await pool.close()

    async def _own_a_seat(self, pool: RequestPool) -> None:
        """One ownership, from taking the seat to losing or releasing it."""
        owner = f"{socket.gethostname()}:{os.getpid()}"
        lease = self._settings.lease
        seat = await take_seat(pool, cluster_id(), self._settings.engines, owner, lease)
        log.info("took seat %s under epoch %s", seat.name, seat.epoch)
        try:
            link, figures = await self._attach(pool, seat)
            await self._schedule(pool, seat, link, figures)
        except StaleEpoch as error:
            log.warning("lost seat %s: %s", seat.name, error)
        except EngineLost as error:
            self._counters.inc("orca:engine_losses")
            log.warning("seat %s: %s", seat.name, error)
            await asyncio.sleep(PAUSE)
        finally:
            with contextlib.suppress(PoolUnavailable):  # then the lease runs out by itself
                await pool.release(seat.name, seat.epoch)

    async def _attach(self, pool: RequestPool, seat: Seat) -> tuple[EngineLink, EngineFigures]:
        """The seat's engine, loaded and serving this epoch; the lease is renewed meanwhile."""
        holding = asyncio.create_task(hold(pool, seat, self._settings.lease))
        attaching = asyncio.create_task(attach(self._settings, seat.index, seat.epoch))
        await asyncio.wait({holding, attaching}, return_when=asyncio.FIRST_COMPLETED)
        attaching.cancel() if holding.done() else holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding
        actor, figures = await attaching
        return EngineLink(actor), unpack(EngineFigures, figures)

    async def _schedule(self, pool: RequestPool, seat: Seat, link: EngineLink, figures: EngineFigures) -> None:
        kind = Scheduler if self._settings.policy == "iteration" else RequestLevelScheduler
        scheduler = kind(
            epoch=seat.epoch,
            num_blocks=figures.num_blocks,
            block_size=figures.block_size,
            max_model_len=figures.max_model_len,
            max_batch_size=self._settings.max_batch_size,
            eos_token_ids=self._model.eos_token_ids,
            text=self._text,
        )
        keeping = asyncio.create_task(link.keep(SIGN_OF_LIFE))
        self._loop = EngineLoop(pool, scheduler, link, RealClock(), seat, self._settings.lease, figures, self._counters)
        try:
            await self._loop.run()
        finally:
            self._loop = None
            keeping.cancel()


def _log_death(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("the scheduler ended", exc_info=error)
