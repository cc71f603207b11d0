"""Ownership: one scheduler's time on a seat. It attaches to the engine, runs the EngineLoop and releases the seat; on a
surplus seat it removes the engine instead.

Attaching: `Ownership._while_holding` keeps the seat meanwhile, `EngineProcesses.open_client` chooses the processes of
the engine, `EngineClient.serve` tells them the epoch, and `EngineActor.serve` loads the weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from actors.engine_client import KEEP_ALIVE_INTERVAL, Attachment, EngineClient
from actors.engine_processes import EngineProcesses, reason_of
from actors.knobs import knobs_of
from actors.liveness import Lifeline
from actors.seat import POOL_PAUSE, Seat, answered, hold, renew
from actors.sleeping import TRIES, Sleeper
from services.background import keep_running, start
from services.errors import (
    EngineLost,
    EngineStuck,
    LaterEpoch,
    ModelError,
    NoRoom,
    NotWanted,
    PoolFault,
    PoolUnavailable,
    SchedulerFault,
    StaleEpoch,
)
from services.live.publisher import FramePublisher
from services.live.recorder import Recorder
from services.logs import about, describe
from services.loop.clock import now
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.observers import Observer
from services.metrics import Counters
from services.models import ModelInfo
from services.overview import SleepLevel
from services.pool.pool import RequestPool
from services.scheduling import CostModel, RequestLevelScheduler, Scheduler
from services.settings.settings import Settings
from services.text import TextTables
from services.tracing.tenures import TenureTraces
from services.tracing.tracer import Tracer

RETRY_PAUSE = 0.2  # seconds before the seat is released after a failure of the engine or the scheduler

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What a scheduler process has before it owns a seat, and keeps from one ownership to the next."""

    settings: Settings
    pool: RequestPool
    model: ModelInfo
    text: TextTables
    counters: Counters
    bounds: IterationCost  # how long an iteration of its engines takes at most, as far as it has been measured
    cost: CostModel  # and on average
    owner: str  # the name of this process as the owner of a seat
    node: str  # the address of the node of this process
    lifeline: Lifeline  # watched by the spares
    tracer: Tracer | None


class Ownership:
    """A seat, from the moment this process has taken it until it is released or lost."""

    def __init__(self, context: SchedulerContext, seat: Seat, engine_lost_at: float | None) -> None:
        """`engine_lost_at` is the Unix time at which the death of the engine ended the previous ownership, if so."""
        self._context, self._pool = context, context.pool
        self._seat = seat
        self._engine = EngineProcesses(context.settings, seat.index, context.node, self._check_owner)
        self._client: EngineClient | None = None
        self._loop: EngineLoop | None = None
        self._stopping = False
        settings = context.settings
        self._sleeper = Sleeper(
            context.pool,
            seat,
            self._engine,
            settings.sleep,
            settings.constants.upscale_delay,
            settings.constants.lease,
            self._while_holding,
            self._gauges,
        )
        self._removed = False  # the engine, because the seat is surplus
        self._engine_died_at = 0.0  # Unix time
        self._recovery = {
            "recovery_noticed": engine_lost_at or seat.noticed,
            "recovery_acquired": seat.acquired,
        }

    def stop(self) -> bool:
        """Let `run` finish the iterations in flight, commit them and return. False if the loop does not run yet."""
        self._stopping = True
        if self._loop:
            self._loop.stop()
        return self._loop is not None

    async def run(self) -> float | None:
        """Serve until `stop`, until the seat or the engine is lost, until the scheduler fails on a request, or until
        the seat is surplus and drained. If the seat was surplus from the start, remove its engine.

        The seat is released in any case. The engine stays for the next owner; if it failed it is killed, and its actor
        starts again as a spare. Returns the Unix time at which the death of the engine was noticed, if it died.
        """
        struck: list[str] = []
        describe(seat=self._seat.name, epoch=self._seat.epoch)
        try:
            if self._seat.surplus:
                await self._remove()
                return None
            attachment = await self._load()
            try:
                while await self._serve(attachment):
                    attachment = await self._sleep(attachment)
            except EngineLost as error:
                struck = self._loop.in_flight if self._loop else []
                return await self._lose_engine(error)
            except SchedulerFault as fault:
                struck = fault.requests
                self._context.counters.inc("orca:scheduler_faults", engine=str(self._seat.index))
                extra = about(*struck)
                log.error("seat %s: %s", self._seat.name, fault, exc_info=fault.__cause__, extra=extra)
                await asyncio.sleep(RETRY_PAUSE)
            finally:
                self._loop = None
        except NotWanted as error:
            log.info("seat %s: %s", self._seat.name, error)
        except StaleEpoch as error:
            log.warning("lost seat %s: %s", self._seat.name, error)
        except EngineLost as error:
            if isinstance(error, EngineStuck):
                self._context.counters.inc("orca:engine_stuck", engine=str(self._seat.index))
            log.warning("seat %s: %s", self._seat.name, error)
            await asyncio.sleep(RETRY_PAUSE)
        except PoolFault as error:  # no request has caused this
            log.error("seat %s: %s", self._seat.name, error)
            await asyncio.sleep(self._context.settings.constants.lease / 3)
        finally:
            if self._client:
                self._client.close()
            await self._release(struck)
            describe(seat="", epoch="")
        return None

    async def _while_holding(self, work: Awaitable[T]) -> T:
        """The result of `work`. The lease is renewed meanwhile; if that fails, the work is cancelled."""
        holding = asyncio.create_task(
            hold(self._pool, self._seat, self._context.settings.constants.lease, self._gauges)
        )
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({holding, working}, return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                holding.result()
            return working.result()
        finally:
            for task in (holding, working):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, EngineLost, ModelError, NoRoom, NotWanted, StaleEpoch):
                    await task

    async def _remove(self) -> None:
        """Remove the engine of a surplus seat. If this process dies meanwhile, the next owner begins again. If another
        pool may have this seat too, the engine is left to that one's owner; without an owner it ends itself."""
        log.info("seat %s is surplus: removing its engine", self._seat.name)
        if not self._seat.shared:
            await self._while_holding(self._engine.remove())
        self._removed = True

    async def _load(self) -> Attachment:
        """Attach to the engine of the seat. If it cannot load the model, which only the operator can resolve, the seat
        is kept and says why until another try succeeds. An engine that dies meanwhile has `TRIES`. Raises EngineLost,
        and NotWanted after `stop`."""
        tries = 0
        failed: EngineLost | ModelError
        while not self._stopping:
            try:
                attachment = await self._begin()
                self._seat.failure = ""
                return attachment
            except EngineStuck:
                raise
            except EngineLost as error:
                tries += 1
                if tries == TRIES:
                    raise
                failed, pause = error, RETRY_PAUSE
            except ModelError as error:
                failed, pause = error, self._context.settings.constants.lease
            log.warning("seat %s: %s", self._seat.name, failed)
            self._seat.failure = reason_of(failed)
            await self._while_holding(asyncio.sleep(pause))
        raise NotWanted("it is given back")

    async def _begin(self) -> Attachment:
        """Attach to the engine of the seat. While other engines have the memory for its weights, it is cold, and wakes
        up when requests wait; one of a model that has never had an engine waits for its turn at once."""
        while True:
            try:
                return await self._attach()
            except NoRoom as error:
                log.info("seat %s: %s", self._seat.name, error)
            with contextlib.suppress(PoolUnavailable):
                if figures := (await self._pool.overview()).figures:
                    return await self._sleeper.sleep(None, figures, self._attach)

    async def _attach(self) -> Attachment:
        """Attach to the engine of the seat, under a later epoch if the engine refuses this one: it has served an owner
        in another pool, whose clock is ahead. Raises StaleEpoch if the seat has another owner."""
        while True:
            try:
                return await self._while_holding(self._open_client())
            except LaterEpoch as error:
                log.info("seat %s: %s; taking the seat again", self._seat.name, error)
                await self._release([])
                await self._take_again(error.number)

    async def _take_again(self, after: int) -> None:
        """Take the seat, which was just released, under an epoch after this number; waits while the pool is away."""
        seat, context = self._seat, self._context
        lease = context.settings.constants.lease
        grant = await answered(lambda: self._pool.acquire(seat.name, context.owner, lease, after=after))
        if not grant.granted:
            raise StaleEpoch(f"epoch {seat.epoch} of {seat.name} is over")
        seat.epoch, seat.call = grant.epoch, 0
        describe(seat=seat.name, epoch=seat.epoch)

    async def _open_client(self) -> Attachment:
        """Attach to the engine of the seat: when this returns, its weights are loaded and it serves this epoch."""
        self._client, attachment = await self._engine.open_client(self._seat.epoch, self._context.bounds)
        self._recovery |= {"recovery_attached": time.time(), "recovery_loading": attachment.loading}
        return attachment

    async def _sleep(self, attachment: Attachment) -> Attachment:
        """Let the engine give back its weights until it is needed; see `Sleeper.sleep`."""
        assert self._client is not None
        log.info("seat %s: the engine gives back its weights", self._seat.name)
        return await self._sleeper.sleep(self._client, attachment.figures, self._attach)

    async def _serve(self, attachment: Attachment) -> bool:
        """Run the loop. Returns whether it has ended because the engine is to be cold: it was idle for long, or another
        one needs the memory."""
        settings, client = self._context.settings, self._client
        assert client is not None
        kind = Scheduler if settings.policy == "iteration" else RequestLevelScheduler
        scheduler = kind(
            epoch=self._seat.epoch,
            figures=attachment.figures,
            knobs=knobs_of(settings, attachment.figures),
            eos_token_ids=self._context.model.eos_token_ids,
            text=self._context.text,
            warm_up=attachment.warm_up,
            cost=self._context.cost,
            cached_blocks=attachment.cached_blocks,
        )
        recorder = Recorder(self._seat.name, self._seat.epoch, scheduler)
        observers: list[Observer] = [recorder]
        if tracer := self._context.tracer:
            observers.append(TenureTraces(tracer, self._seat.name, self._seat.epoch, now))
        self._loop = EngineLoop(
            self._pool,
            scheduler,
            client,
            self._seat,
            settings.constants.lease,
            attachment.figures,
            self._context.counters,
            self._context.bounds,
            self._gauges,
            observers,
            settings.drain_timeout,
            settings.sleep,
        )
        client.dead.add_done_callback(partial(self._on_engine_death, self._loop))
        client.stopped.add_done_callback(partial(self._on_engine_stop, self._loop))
        client.crowded.add_done_callback(partial(_give_way, self._loop))
        spares = self._seat.epoch, client.names, KEEP_ALIVE_INTERVAL, self._is_busy
        background = (
            start(keep_running(client.keep_alive), "signs of life"),
            start(keep_running(partial(self._engine.keep_spares, *spares)), "spares"),
            start(keep_running(FramePublisher(self._pool.broadcast(), recorder).run), "the live feed"),
        )
        try:
            await self._loop.run()
        finally:
            for task in background:
                task.cancel()
        cold = self._loop.level is SleepLevel.COLD and not self._stopping
        if cold:
            self._loop = None
        return cold

    async def _is_busy(self) -> bool:
        """Whether the engine runs an iteration."""
        return bool(self._loop and self._loop.in_flight)

    def _on_engine_death(self, loop: EngineLoop, dead: asyncio.Task[None]) -> None:
        if not dead.cancelled():
            self._engine_died_at = time.time()
            loop.lose(EngineLost("the engine process died"))

    def _on_engine_stop(self, loop: EngineLoop, stopped: asyncio.Task[int]) -> None:
        if not stopped.cancelled():
            loop.lose(EngineStuck(f"engine process {stopped.result()} is stopped"))

    async def _lose_engine(self, error: EngineLost) -> float:
        """Kill what is left of the engine; return when its death was noticed. Only the owner of the seat may kill: a
        scheduler that was stopped for long may have lost the seat, so the pool is asked first."""
        noticed = self._engine_died_at or time.time()
        self._context.counters.inc("orca:engine_losses", engine=str(self._seat.index))
        in_flight = self._loop.in_flight if self._loop else []
        log.warning("seat %s: %s", self._seat.name, error, extra=about(*in_flight))
        assert self._client is not None
        if not self._client.gone:
            await self._check_owner()
            await self._client.kill()
        return noticed

    async def _check_owner(self) -> None:
        """Raises StaleEpoch if the pool says that another process owns the seat; waits while the pool is away."""
        await answered(lambda: renew(self._pool, self._seat, self._gauges))
        if self._loop:
            self._loop.doubt()

    async def _release(self, struck: list[str]) -> None:
        """Release the seat, and leave what was counted with the pool, as another process may be the next owner. While
        the pool is away, wait; after `stop`, leave the seat to its lease to expire instead."""
        seat, counted = self._seat, self._context.counters.take()
        while True:
            try:
                if not await self._pool.release(seat.name, seat.epoch, struck, self._removed, counted):
                    self._context.counters.put_back(counted)
                return
            except PoolUnavailable as error:
                log.debug("%s: waiting for the pool: %s", self._seat.name, error)
                if self._stopping:
                    return
                await asyncio.sleep(POOL_PAUSE)

    def _gauges(self) -> dict[str, float]:
        """The gauges of this process and of the engine's, which go with every exchange."""
        client, sleeper = (None if self._sleeper.level else self._client), self._sleeper
        gauges = {
            "recovery_first_iteration": client.first_result if client else 0.0,
            "engine_pid": float(client.status.pid) if client else 0.0,
            "scheduler_pid": float(os.getpid()),
            "spare_ready": float(self._engine.has_spare),
            "spare_schedulers": float(self._context.lifeline.watchers),
            "sleep": float(self._loop.level if self._loop else sleeper.level),
        }
        if sleeper.level:
            gauges["ready"] = float(not sleeper.failed)
        if sleeper.seconds:
            gauges["waking_seconds"] = sleeper.seconds
        return self._recovery | gauges


def _give_way(loop: EngineLoop, crowded: asyncio.Future[None]) -> None:
    if not crowded.cancelled():
        loop.give_way()
