"""EngineLoop: update, select, start, exchange, again and again. It knows protocols only.

The Ray actor, the in-process benchmark and the simulator all run this one coroutine, each with its own pool,
engine and clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from services.blame import blamed
from services.errors import EngineLost, EngineStuck, OrcaError, SchedulerFault
from services.iteration_cost import LEAST, IterationCost
from services.iteration_stats import IterationStats
from services.messages import EngineFigures, Exchange, Iteration, IterationResult, Room
from services.pool_line import PoolLine, forget
from services.protocols import Clock, Engine, Pool, Scheduler, Seat
from services.telemetry import Counters

LOOK = 0.02  # seconds between looks into the pool while all that runs gives way to what comes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """An iteration that was sent to the engine."""

    iteration: Iteration
    result: asyncio.Future[IterationResult]
    began: float  # when it was sent, or the one before it came back
    limit: float = LEAST  # seconds it may take; looked at more closely when they are over


class EngineLoop:
    """One seat's heart: keeps its engine busy, commits what it makes, claims what it has room for.

    The engine never waits for the pool: while iteration k+1 runs, one exchange commits k and claims for k+2. Where the
    scheduler has more iterations for it than one (pipeline stages, lookahead), it does not wait for them either. An
    exchange that fails is repeated unchanged, and what comes about meanwhile joins the next. While an iteration
    outlasts a third of the lease, and while there is nothing to do, an exchange renews the lease that often.
    """

    def __init__(
        self,
        pool: Pool,
        scheduler: Scheduler,
        engine: Engine,
        clock: Clock,
        seat: Seat,
        lease: float,
        figures: EngineFigures,
        counters: Counters,
        cost: IterationCost,
        gauges: Callable[[], dict[str, float]] = dict,
    ) -> None:
        """Made where an event loop runs. Scheduler and engine know the seat's epoch. `lease` is in seconds. `cost` is
        what is known of such an engine's speed from before. `gauges` are those of the process, sent with each exchange.
        """
        self._scheduler = scheduler
        self._engine = engine
        self._clock = clock
        self._seat = seat
        self._lease, self._renewal = lease, lease / 3
        self._figures = figures
        self._line = PoolLine(pool, clock, seat, self._renewal)
        self._stats = IterationStats(counters)
        self._cost = cost
        self._process_gauges = gauges
        self._stopping = False
        self._ready = True
        self._flights: deque[_Flight] = deque()
        self._ended: list[tuple[Iteration, IterationResult, float]] = []  # and the seconds each took
        self._death: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._nothing_waits = False  # the last reply to an idle exchange brought no work
        self._claimed: list[str] = []  # by the last reply

    @property
    def in_flight(self) -> list[str]:
        """The requests of the iterations the engine has; once it is lost, those it was lost with."""
        return list(dict.fromkeys(id for flight in self._flights for id in flight.iteration.scheduled))

    def stop(self) -> None:
        """Let `run` return once what is in flight is committed. What then still runs goes back to the pool
        when the caller releases the seat."""
        self._stopping = True
        self._line.wake()

    def lose(self, error: EngineLost) -> None:
        """The engine is dead, as somebody saw who watches it: `run` raises `error`, be the engine busy or idle."""
        if not self._death.done():
            self._death.set_exception(error)

    async def run(self) -> None:
        """Serve until `stop`. Whatever it raises, nothing more is written under this epoch, and the next owner of
        the seat goes on with its requests:

        StaleEpoch: the seat is another's. EngineLost: the engine died, EngineStuck: or lives and finishes nothing;
        what came before is committed, and `in_flight` says whom it was lost with. SchedulerFault: scheduling raised an
        exception, `requests` says on which requests; nothing more was committed, since the books may not balance.
        PoolFault: the pool's server answered with an error that does not pass.
        """
        try:
            while True:
                self._check_engine()
                self._start_iterations()
                self._judge_ended()
                if self._finished():
                    return
                if self._nothing_waits:
                    self._nothing_waits = False
                    await self._line.wait_bell(self._death, self._scheduler.rest())
                    continue
                self._begin_exchange()
                await self._wait()
                self._end_exchange()
                self._end_iterations()
        except EngineLost:
            await self._commit_rest()
            raise
        except OrcaError:
            raise
        except Exception as error:
            id = blamed(error, self._handled())
            raise SchedulerFault([id] if id else self.in_flight) from error
        finally:
            await self._leave()

    async def _wait(self) -> None:
        """Until something is done, or due."""
        began, until, futures = self._clock.now(), self._next_call(), [self._death, *self._line.under_way]
        head = self._flights[0] if self._flights else None
        if head:
            futures.append(head.result)
            until = min(until, head.began + head.limit)
        await self._clock.wait_any(futures, until - began)
        if head:  # woken late, this process stood still itself: no sign that the engine does
            head.began += max(0.0, self._clock.now() - max(until, began))

    # --- the engine ------------------------------------------------------------------------------------------

    def _start_iterations(self) -> None:
        while not self._stopping and (iteration := self._scheduler.select()):
            result = asyncio.ensure_future(self._engine.start(iteration))
            self._flights.append(_Flight(iteration, result, self._clock.now()))
            self._stats.started(iteration)
            self._nothing_waits = False

    def _end_iterations(self) -> None:
        while self._flights and self._flights[0].result.done():
            flight, now = self._flights[0], self._clock.now()
            self._scheduler.update(flight.result.result())
            self._flights.popleft()
            if self._flights:
                self._flights[0].began = now
            self._ended.append((flight.iteration, flight.result.result(), now - flight.began))

    def _judge_ended(self) -> None:
        """Learn from the iterations that ended, while the engine is at the next."""
        for iteration, result, seconds in self._ended:
            self._stats.finished(iteration, result, seconds)
            self._cost.finished(iteration, seconds)
        self._ended.clear()

    def _check_engine(self) -> None:
        """Raise if it is known to be dead, or is at its iteration for longer than that can take."""
        if self._death.done():
            self._death.result()
        flight = self._flights[0] if self._flights else None
        if flight is None or self._clock.now() < flight.began + flight.limit:
            return
        flight.limit = self._cost.limit(flight.iteration)
        if self._clock.now() >= flight.began + flight.limit:
            self._stats.stuck()
            raise EngineStuck(f"iteration {flight.iteration.step} is not done after {flight.limit:.0f} s")

    # --- the pool --------------------------------------------------------------------------------------------

    def _begin_exchange(self) -> None:
        """Send what is due, if no call is under way."""
        if self._clock.now() < self._next_call():
            return
        if self._line.busy:
            self._line.repeat()
        else:
            self._line.send(self._next_exchange())

    def _next_call(self) -> float:
        """When the next exchange is due; the distant future while one is under way."""
        if self._line.busy:
            return self._line.due()
        if not self._flights or self._line.in_doubt or self._scheduler.has_commits():
            return -inf
        return self._line.began + (LOOK if self._scheduler.gives_way() else self._renewal)

    def _next_exchange(self) -> Exchange:
        commits = self._scheduler.take_commits()
        room = self._scheduler.room()
        in_doubt, self._line.in_doubt = self._line.in_doubt, False
        self._stats.committed(commits)
        self._seat.call += 1
        return Exchange(
            self._seat.name,
            self._seat.epoch,
            self._seat.call,
            commits,
            Room(0, 0, room.block_size) if self._stopping else room,
            idle=not self._flights and not self._stopping,
            figures=self._figures if in_doubt else None,
            counters=self._stats.take_counters(self._scheduler.take_counters()),
            gauges=self._stats.gauges(self._ready) | self._scheduler.gauges() | self._process_gauges(),
            summary=self._stats.summary,
            holds=self._scheduler.held() if in_doubt else None,
        )

    def _end_exchange(self) -> None:
        """Take the reply, if it is there."""
        received = self._line.receive()
        if received is None:
            return
        exchange, reply = received
        self._stats.exchanged(self._clock.now() - self._line.began)
        self._scheduler.drop(reply.foreign)
        self._stats.resent(self._scheduler.rewind(reply.have))
        self._claimed = [claim.id for claim in reply.claims]
        self._scheduler.add(reply.claims)
        self._scheduler.cancel(reply.cancelled)
        work = reply.claims or self._scheduler.has_commits() or self._line.in_doubt
        self._nothing_waits = exchange.idle and not work

    # --- the end ---------------------------------------------------------------------------------------------

    def _finished(self) -> bool:
        return self._stopping and not (self._flights or self._line.busy or self._scheduler.has_commits())

    async def _commit_rest(self) -> None:
        """The engine is lost: commit what it made before, which tells the innocent from who killed it. Not for longer
        than a lease. Raises StaleEpoch if the seat is another's by now: so may be the engine."""
        self._stopping, self._ready = True, False
        self._judge_ended()
        give_up = self._clock.now() + self._lease
        try:
            while (self._line.busy or self._scheduler.has_commits()) and self._clock.now() < give_up:
                self._begin_exchange()
                await self._clock.wait_any(self._line.under_way, min(self._next_call(), give_up) - self._clock.now())
                self._end_exchange()
        except OrcaError:
            raise
        except Exception:
            log.exception("seat %s: what came before the engine's death cannot be committed", self._seat.name)

    def _handled(self) -> set[str]:
        """All requests that a fault of the scheduler can be about."""
        return {*self._scheduler.held(), *self._claimed, *self.in_flight}

    async def _leave(self) -> None:
        await self._line.close()
        for flight in self._flights:
            flight.result.add_done_callback(forget)
        self._death.cancel()
        self._death.add_done_callback(forget)
