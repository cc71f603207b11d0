"""Sleeping: what the owner of a seat does while its engine has no weights, and how that engine wakes up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from actors.engine_client import Attachment, EngineClient
from actors.engine_processes import EngineProcesses, reason_of
from actors.seat import POOL_PAUSE, Gauges, Seat, exchange, renew
from services.background import keep_running, start
from services.errors import EngineLost, ModelError, NoRoom, NotWanted, PoolUnavailable
from services.messages import Commit, End, EngineFigures, Room
from services.overview import SleepLevel
from services.pool.pool import RequestPool
from services.requests import FinishReason
from services.sleep import SleepRule, is_needed

TRIES = 3  # times that an engine may die while it wakes up
AT_ONCE = 64  # requests that one exchange ends because the engine does not wake up
RETRY_PAUSE = 0.2  # seconds before the next try

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sleeper:
    """The engine of a seat while it has no weights. It goes further down, and wakes up when requests wait.

    `delay`: see `is_needed`. `holding` does something and keeps the lease meanwhile. `gauges` go with each call to the
    pool; `level`, `failed` and `seconds`, which the last waking took, are for them.
    """

    pool: RequestPool
    seat: Seat
    engine: EngineProcesses
    rule: SleepRule
    delay: float
    lease: float
    holding: Callable[[Awaitable[None]], Awaitable[None]]
    gauges: Gauges
    level: SleepLevel = SleepLevel.AWAKE
    failed: bool = False
    seconds: float = 0.0
    _waiting_since: float | None = field(default=None, init=False)

    async def sleep(
        self, client: EngineClient | None, figures: EngineFigures, attach: Callable[[], Awaitable[Attachment]]
    ) -> Attachment:
        """Let the engine of `client`, which is closed at the end, give back its weights until requests wait; then
        `attach`. What it still ran goes back to the pool. A process that is stopped meanwhile is killed, and its actor
        starts another. Without a client, the engine has no weights yet.

        If the engine does not wake up, and no other one is ready, the requests that wait end with the reason, and the
        engine sleeps on. `figures` are those of the engine. Raises NotWanted if the seat becomes surplus, StaleEpoch if
        it is lost, and EngineLost if Ray does not answer.
        """
        self.level = SleepLevel.COLD
        background = [start(keep_running(self.engine.keep_alive), "signs of life")]
        try:
            if client:
                background.append(start(_kill_stopped(client), "killing what is stopped"))
                with contextlib.suppress(PoolUnavailable):  # else `_doze` tells it
                    await renew(self.pool, self.seat, self.gauges, idle=True)
                await self.holding(self.engine.give_back(self.seat.epoch, client.names))
            while True:
                await self._doze()
                try:
                    if attachment := await self._wake(attach, figures):
                        return attachment
                    await asyncio.sleep(self.lease / 3)
                except NoRoom as error:
                    log.info("seat %s: %s", self.seat.name, error)
                self.level = SleepLevel.COLD  # its processes were started for the try
        finally:
            for task in background:
                task.cancel()
            if client:
                client.close()

    async def _doze(self) -> None:
        """Keep the seat until its engine is needed."""
        began, self._waiting_since = time.monotonic(), None
        while True:
            try:
                if await self._is_needed():
                    return
                idle = time.monotonic() - began
                if self.level < self.rule.deepest and idle >= self.rule.after:
                    log.info("seat %s: the engine has been cold for %.0f s, and is off", self.seat.name, idle)
                    self.level = SleepLevel.OFF
                    await self.holding(self.engine.remove())
                    continue
                with contextlib.suppress(TimeoutError):  # a dead connection must not cost the lease
                    async with asyncio.timeout(2 * self.lease / 3):
                        await self.pool.wait_bell(self.seat.name, self.lease / 3)
            except PoolUnavailable as error:
                log.debug("%s: waiting for the pool: %s", self.seat.name, error)
                await asyncio.sleep(POOL_PAUSE)

    async def _is_needed(self) -> bool:
        """Renew the lease, ask for the bell, and return whether the engine is to wake up."""
        if await renew(self.pool, self.seat, self.gauges, idle=True):
            raise NotWanted(f"the cluster of {self.seat.name} is to have fewer engines")
        overview, now = await self.pool.overview(), time.monotonic()
        if not overview.waiting:
            self._waiting_since = None
            return False
        self._waiting_since = self._waiting_since or now
        return is_needed(overview, self.seat.name, now - self._waiting_since, self.delay)

    async def _wake(self, attach: Callable[[], Awaitable[Attachment]], figures: EngineFigures) -> Attachment | None:
        """Attach to the engine. None if it does not wake up, once the requests that waited have ended."""
        began, reason = time.monotonic(), ""
        for _ in range(TRIES):
            try:
                attachment = await attach()
                self.level, self.failed, self.seconds = SleepLevel.AWAKE, False, time.monotonic() - began
                self.seat.failure = ""
                log.info("seat %s: the engine woke up in %.1f s", self.seat.name, self.seconds)
                return attachment
            except ModelError as error:
                reason = reason_of(error)
                break
            except EngineLost as error:
                log.warning("seat %s: %s", self.seat.name, error)
                reason = reason_of(error)
                await asyncio.sleep(RETRY_PAUSE)
        log.error("seat %s: the engine does not wake up: %s", self.seat.name, reason)
        self.failed, self.seat.failure = True, reason
        with contextlib.suppress(PoolUnavailable):  # they wait, and the next try to wake up ends them
            if not (await self.pool.overview()).awake:
                reason = f"The model could not be loaded: {reason}"
                await end_waiting(self.pool, self.seat, figures, reason, self.gauges)
        return None


async def _kill_stopped(client: EngineClient) -> None:
    await asyncio.wait({client.stopped})
    if not client.stopped.cancelled():
        await client.kill()


async def end_waiting(pool: RequestPool, seat: Seat, figures: EngineFigures, reason: str, gauges: Gauges) -> None:
    """End all requests that wait and that an engine with these `figures` would serve. Raises StaleEpoch if the seat has
    another owner, and PoolUnavailable."""
    commits: list[Commit] = []
    room = Room(
        AT_ONCE, AT_ONCE * figures.num_blocks, figures.block_size, longest=figures.longest, features=figures.features
    )
    while True:
        reply = await exchange(pool, seat, gauges, commits, room)
        if not reply.claims:
            return
        end = End(FinishReason.ERROR, error=reason, at=time.time())
        commits = [Commit(claim.id, len(claim.output), [], end=end) for claim in reply.claims]
