"""One ownership of a seat: attach its engine, run the EngineLoop, give the seat back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from functools import partial

from actors.engine_link import SIGN_OF_LIFE, EngineLink
from actors.engine_ranks import EngineRanks
from actors.lifeline import Lifeline
from actors.pool_link import PoolLink
from actors.seat import Seat, hold, renew
from services.background import keep_running, start
from services.errors import EngineLost, OtherWeights, PoolFault, PoolUnavailable, SchedulerFault, StaleEpoch
from services.loop.clock import RealClock
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.messages import EngineFigures
from services.metrics import Counters
from services.models import ModelInfo
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler
from services.settings.settings import Settings
from services.text import TextTables

PAUSE = 0.2  # seconds before the next try where no engine could be attached

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scheduler process has ready before it owns anything."""

    settings: Settings
    pool: PoolLink
    model: ModelInfo
    text: TextTables
    counters: Counters
    cost: IterationCost  # what is known of its engines' speed, from one ownership to the next
    here: str  # the node of this process
    lifeline: Lifeline  # watched by those who wait for its seat


def knobs(settings: Settings) -> Knobs:
    return Knobs(
        max_batch_size=settings.max_batch_size,
        token_budget=settings.token_budget or None,
        tbt_target=settings.tbt_target or None,
        admission=settings.admission,
        order=settings.order,
        batches_in_flight=settings.pp,
        lookahead=settings.lookahead,
        prefix_caching=settings.prefix_caching,
        share_prefixes=settings.share_prefixes,
    )


class Ownership:
    """A seat, from the moment it is ours to the moment it is given back or lost."""

    def __init__(self, parts: Parts, seat: Seat, lost: float | None) -> None:
        """`lost` is the Unix time at which the engine's death ended the ownership before this one."""
        self._parts = parts
        self._pool = parts.pool
        self._seat = seat
        self._engine = EngineRanks(parts.settings, seat.index, parts.here)
        self._link: EngineLink | None = None
        self._loop: EngineLoop | None = None
        self._stopping = False
        self._died = 0.0  # Unix time
        self._recovery = {
            "recovery_noticed": lost or seat.noticed,
            "recovery_acquired": seat.acquired,
        }
        parts.pool.say = self._gauges

    def stop(self) -> bool:
        """Let `run` finish the iteration in flight, commit it and return. False if it is not at iterations yet."""
        self._stopping = True
        if self._loop:
            self._loop.stop()
        return self._loop is not None

    async def run(self) -> float | None:
        """Serve until `stop`, or until the seat or the engine is lost, or the scheduler fails on a request. The seat is
        given back in any case, the engine stays for its next owner; one that failed is killed, and its actor starts
        again as a spare.

        Returns the Unix time at which the engine's death was noticed, if it died."""
        struck: list[str] = []
        try:
            figures = await self._attach()
            try:
                await self._serve(figures)
            except EngineLost as error:
                struck = self._loop.in_flight if self._loop else []
                return await self._lose(error)
            except SchedulerFault as fault:
                struck = fault.requests
                self._parts.counters.inc("orca:scheduler_faults")
                log.error("seat %s: %s", self._seat.name, fault, exc_info=fault.__cause__)
                await asyncio.sleep(PAUSE)
            finally:
                self._loop = None
        except StaleEpoch as error:
            log.warning("lost seat %s: %s", self._seat.name, error)
        except EngineLost as error:
            log.warning("seat %s: %s", self._seat.name, error)
            await asyncio.sleep(PAUSE)
        except OtherWeights as error:  # whoever operates it must choose
            log.error("seat %s: %s", self._seat.name, error)
            await asyncio.sleep(self._parts.settings.lease)
        except PoolFault as error:  # no request is to blame
            log.error("seat %s: %s", self._seat.name, error)
            await asyncio.sleep(self._parts.settings.lease / 3)
        finally:
            if self._link:
                self._link.close()
            await self._release(struck)
        return None

    async def _attach(self) -> EngineFigures:
        """The seat's engine, loaded and serving this epoch; the lease is renewed meanwhile."""
        holding = asyncio.create_task(hold(self._pool, self._seat, self._parts.settings.lease))
        attaching = asyncio.create_task(self._load())
        try:
            await asyncio.wait({holding, attaching}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                holding.result()
            return attaching.result()
        finally:
            for task in (holding, attaching):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineLost, OtherWeights, StaleEpoch):
                    await task

    async def _load(self) -> EngineFigures:
        self._link, figures, loading = await self._engine.attach(self._seat.epoch, self._still_mine, self._parts.cost)
        self._recovery |= {"recovery_attached": time.time(), "recovery_loading": loading}
        return figures

    async def _serve(self, figures: EngineFigures) -> None:
        settings, link = self._parts.settings, self._link
        assert link is not None
        kind = Scheduler if settings.policy == "iteration" else RequestLevelScheduler
        scheduler = kind(
            epoch=self._seat.epoch,
            figures=figures,
            knobs=knobs(settings),
            eos_token_ids=self._parts.model.eos_token_ids,
            text=self._parts.text,
        )
        self._loop = EngineLoop(
            self._pool,
            scheduler,
            link,
            RealClock(),
            self._seat,
            settings.lease,
            figures,
            self._parts.counters,
            self._parts.cost,
        )
        link.dead.add_done_callback(partial(self._notice, self._loop))
        spares = self._seat.epoch, link.names, SIGN_OF_LIFE, self._still_mine
        keeping = (
            start(keep_running(link.keep), "signs of life"),
            start(keep_running(partial(self._engine.keep_spares, *spares)), "spares"),
        )
        try:
            await self._loop.run()
        finally:
            for task in keeping:
                task.cancel()

    def _notice(self, loop: EngineLoop, dead: asyncio.Task[None]) -> None:
        if not dead.cancelled():
            self._died = time.time()
            loop.lose(EngineLost("the engine process died"))

    async def _lose(self, error: EngineLost) -> float:
        """Make sure that all its processes are dead. Only its owner may: a scheduler that slept is not."""
        noticed = self._died or time.time()
        self._parts.counters.inc("orca:engine_losses")
        log.warning("seat %s: %s", self._seat.name, error)
        assert self._link is not None
        if not self._link.gone:
            await self._still_mine()
            await self._link.kill()
        return noticed

    async def _still_mine(self) -> None:
        """Raises StaleEpoch if the pool says that the seat is another's; waits while the pool is away."""
        while True:
            try:
                return await renew(self._pool, self._seat)
            except PoolUnavailable as error:
                log.warning("%s: waiting for the pool: %s", self._seat.name, error)
                await asyncio.sleep(self._parts.settings.lease / 3)

    async def _release(self, struck: list[str]) -> None:
        """Give the seat back. While the pool is away, wait; if told to stop, the lease runs out by itself."""
        while True:
            try:
                return await self._pool.release(self._seat.name, self._seat.epoch, struck)
            except PoolUnavailable as error:
                log.warning("%s: waiting for the pool: %s", self._seat.name, error)
                if self._stopping:
                    return None
                await asyncio.sleep(self._parts.settings.lease / 3)

    def _gauges(self) -> dict[str, float]:
        link = self._link
        return self._recovery | {
            "recovery_first_iteration": link.first_result if link else 0.0,
            "engine_pid": float(link.status.pid) if link else 0.0,
            "scheduler_pid": float(os.getpid()),
            "spare_ready": float(self._engine.has_spare),
            "spare_schedulers": float(self._parts.lifeline.watchers),
        }
