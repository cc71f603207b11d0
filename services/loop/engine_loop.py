"""EngineLoop: the loop that keeps one engine busy: select and start iterations, exchange with the pool, update.

The Ray actor, the in-process benchmark and the simulator all run this coroutine, each with its own pool and engine; the
simulator does so on virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NoReturn, Protocol

from services.errors import EngineLost, EngineStuck, OrcaError, SchedulerFault, StaleEpoch
from services.loop.blame import find_request
from services.loop.clock import now, wait_any
from services.loop.iteration_cost import LEAST, IterationCost
from services.loop.observers import Leaving, Observer, Observers
from services.loop.pool_session import Pool, PoolSession, Seat, discard_outcome
from services.loop.stats import IterationStats
from services.messages import EngineFigures, Exchange, Iteration, IterationResult, Room
from services.metrics import Counters
from services.overview import SleepLevel
from services.scheduling import Scheduler
from services.seats import engine_of
from services.sleep import SleepRule

NEVER = SleepRule()

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Runs iterations in order."""

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        """Start the iteration now, or when the ones before allow it. Awaiting the return value gives the result or
        raises `EngineLost` or `StaleEpoch`.
        """
        ...


@dataclass(slots=True)
class PendingIteration:
    """An iteration that was sent to the engine and has not finished."""

    iteration: Iteration
    result: asyncio.Future[IterationResult]
    started_at: float  # when it was sent, or when the iteration before it finished
    limit: float = LEAST  # seconds it may take; computed from the iteration when they have passed


class EngineLoop:
    """Keeps the engine of one seat busy, commits its tokens, and claims requests that it has room for.

    The engine never waits for the pool: while iteration k+1 runs, one exchange commits the tokens of iteration k and
    claims requests for k+2. If the scheduler has more than one iteration for the engine (pipeline stages, lookahead),
    the loop does not wait for these either. An exchange that fails is repeated unchanged, and what happens in the
    meantime goes into the next one. During an iteration that takes longer than a third of the lease, and while there
    is nothing to do, exchanges renew the lease.
    """

    def __init__(
        self,
        pool: Pool,
        scheduler: Scheduler,
        engine: Engine,
        seat: Seat,
        lease: float,
        figures: EngineFigures,
        counters: Counters,
        cost: IterationCost,
        gauges: Callable[[], dict[str, float]] = dict,
        observers: Sequence[Observer] = (),
        drain_timeout: float = 0.0,
        sleep: SleepRule = NEVER,
    ) -> None:
        """Must be called while an event loop runs. Scheduler and engine belong to the seat's epoch. `lease` is in
        seconds. `cost` may have learned from earlier iterations of such an engine. `gauges` returns those of the
        process, which are sent with each exchange. `drain_timeout`: see `Draining`. `sleep`: when an idle engine gives
        back its KV cache, and when the loop ends because the engine is to give back its weights.
        """
        self._scheduler = scheduler
        self._engine = engine
        self._seat = seat
        self._lease, self._renewal = lease, lease / 3
        self._figures = figures
        self._session = PoolSession(pool, seat, self._renewal)
        self._stats = IterationStats(counters, engine_of(seat.name))
        self._cost = cost
        self._process_gauges = gauges
        self._observers = Observers(observers)
        self._left_by: Leaving | None = Leaving.RELEASED  # for the observers
        self._stopping, self._ready = False, True
        self._draining = Draining(drain_timeout)
        self._sleep = sleep
        self._idle_since: float | None = None  # None: there is a request
        self.level = SleepLevel.AWAKE  # COLD: the loop ends, or has ended, so that the engine gives back its weights
        self._gives_way = False
        self._owed: str | None = None  # the request that gets a token before; empty: it has
        self._pending: deque[PendingIteration] = deque()
        self._finished: list[tuple[Iteration, IterationResult, float]] = []  # not recorded yet; with their seconds
        self._engine_lost: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._nothing_waits = False  # the last reply to an idle exchange brought no work
        self._claimed: list[str] = []  # by the last reply

    @property
    def in_flight(self) -> list[str]:
        """The requests of the pending iterations. After the engine was lost, the requests that it was lost with."""
        return list(dict.fromkeys(id for pending in self._pending for id in pending.iteration.scheduled))

    def stop(self) -> None:
        """Make `run` return when the pending iterations are committed. Requests that still run go back to the pool
        when the caller releases the seat.
        """
        self._stopping = True
        self._session.wake()

    def give_way(self) -> None:
        """Make `run` return soon, with `level` COLD: the engine has to make room for another one. Nothing is claimed
        any more, and the earliest request that runs gets one more token before: else one whose prompt takes longer than
        each turn would never get one. If it has to wait for others, the earliest of these does."""
        self._gives_way = True
        self._session.wake()

    def doubt(self) -> None:
        """Exchange the full state soon: the owner of the seat has called the pool beside the loop. The reply of such a
        call may have told of a loss or of texts to forget, and the seat does not wait for its bell any more."""
        self._session.in_doubt = True
        self._session.wake()

    def lose(self, error: EngineLost) -> None:
        """Make `run` raise `error`, whether the engine is busy or idle: it was seen to die, or to be stopped."""
        if not self._engine_lost.done():
            self._engine_lost.set_exception(error)

    async def run(self) -> None:
        """Serve until `stop`, until the seat is surplus and drained, or until the engine is to be cold (`level`). After
        an exception nothing more is written under this epoch, and the next owner of the seat continues with its
        requests.

        Raises StaleEpoch if the seat has another owner. EngineLost if the engine died, EngineStuck if it lives but
        finishes no iteration, or is stopped; everything that finished before is committed, and `in_flight` returns the
        requests that it was lost with. SchedulerFault if the scheduler raised an exception; `requests` are those it may
        be about, and nothing more was committed, because the state may be inconsistent. PoolFault if the pool's server
        answered with a permanent error.
        """
        try:
            while True:
                self._check_engine()
                if self._draining.is_over(now(), self._scheduler.held):
                    self.stop()
                self._start_iterations()
                self._record_finished()
                if self._gives_way and not self._owes():
                    self.level = SleepLevel.COLD
                    self.stop()
                if self._is_done():
                    return
                if self._nothing_waits:
                    self._nothing_waits = False
                    if not self._fall_asleep():
                        until = min(self._scheduler.wait_time(), self._sleep.due(self._idle_seconds()))
                        await self._session.wait_bell(self._engine_lost, until)
                    continue
                self._begin_exchange()
                self._observers.tell(lambda each: each.rest())
                await self._wait()
                self._end_exchange()
                self._end_iterations()
        except EngineLost as error:
            if isinstance(error, EngineStuck):
                self._stats.stuck()
            self._left_by = None
            await self._commit_rest()
            self._left_by = Leaving.ENGINE_LOST
            raise
        except StaleEpoch:
            self._left_by = None
            raise
        except OrcaError:
            raise
        except Exception as error:
            self._left_by = Leaving.SCHEDULER_FAULT
            id = find_request(error, self._known_requests())
            raise SchedulerFault([id] if id else self.in_flight) from error
        finally:
            await self._close()

    async def _wait(self) -> None:
        """Wait until an iteration, a call or the engine has ended, or something is due."""
        began, until = now(), self._next_call_at()
        futures = [self._engine_lost, *self._session.pending_calls]
        first = self._pending[0] if self._pending else None
        if first:
            futures.append(first.result)
            until = min(until, first.started_at + first.limit)
        await wait_any(futures, until - began)
        if first:  # if this process woke up late, it stood still itself, and the engine is not to blame
            first.started_at += max(0.0, now() - max(until, began))

    # --- the engine ------------------------------------------------------------------------------------------

    def _start_iterations(self) -> None:
        while not self._stopping and (iteration := self._scheduler.select()):
            result = asyncio.ensure_future(self._engine.start(iteration))
            started_at = now()
            self._pending.append(PendingIteration(iteration, result, started_at))
            self._idle_since, self.level = None, SleepLevel.AWAKE
            self._stats.started(iteration, started_at)
            self._observers.tell(lambda each: each.started(iteration))
            self._nothing_waits = False

    def _end_iterations(self) -> None:
        while self._pending and self._pending[0].result.done():
            pending, ended_at = self._pending[0], now()
            self._scheduler.update(pending.result.result())
            self._pending.popleft()
            if self._pending:
                self._pending[0].started_at = ended_at
            if not pending.iteration.sleep:
                self._finished.append((pending.iteration, pending.result.result(), ended_at - pending.started_at))

    def _owes(self) -> bool:
        """Return whether a request has to get a token before the engine makes room."""
        if self._owed is None or (self._owed not in self.in_flight and self._scheduler.find(self._owed)):
            self._owed = next((id for id in self._scheduler.held() if id in self.in_flight), "")
        return bool(self._owed and self._scheduler.find(self._owed))

    def _idle_seconds(self) -> float:
        """Return for how long no request has been here."""
        if self._scheduler.held():
            self._idle_since = None
            return 0.0
        if self._idle_since is None:
            self._idle_since = now()
        return now() - self._idle_since

    def _fall_asleep(self) -> bool:
        """Let the engine go down a state if it has been idle for long enough, and return whether it does."""
        level, before = self._sleep.level(self._idle_seconds()), self.level
        if level <= before:
            return False
        self.level = min(level, SleepLevel.COLD)
        if self.level is SleepLevel.COLD:
            self.stop()
        else:
            iteration = self._scheduler.sleep()
            result = asyncio.ensure_future(self._engine.start(iteration))
            self._pending.append(PendingIteration(iteration, result, now()))
        return True

    def _record_finished(self) -> None:
        """Count the finished iterations and learn from them. This is done while the engine computes the next one."""
        for iteration, result, seconds in self._finished:
            self._stats.finished(iteration, result, seconds)
            self._cost.finished(iteration, seconds)
            self._tell_finished(iteration, result, seconds)
        self._finished.clear()

    def _tell_finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        self._observers.tell(lambda each: each.finished(iteration, result, seconds))

    def _check_engine(self) -> None:
        """Raise EngineLost if the engine is dead, EngineStuck if its iteration takes longer than it can."""
        if self._engine_lost.done():
            self._engine_lost.result()
        pending = self._pending[0] if self._pending else None
        if pending is None or now() < pending.started_at + pending.limit:
            return
        pending.limit = self._cost.limit(pending.iteration)
        if now() >= pending.started_at + pending.limit:
            raise EngineStuck(f"iteration {pending.iteration.step} is not done after {pending.limit:.0f} s")

    # --- the pool --------------------------------------------------------------------------------------------

    def _begin_exchange(self) -> None:
        """Send the exchange that is due, if no call is pending."""
        if now() < self._next_call_at():
            return
        if self._session.busy:
            self._session.resend()
        else:
            self._session.send(self._next_exchange())

    def _next_call_at(self) -> float:
        """Return when the next call is due; infinite while one is pending."""
        if self._session.busy:
            return self._session.retry_at()
        if not self._pending or self._session.in_doubt or self._scheduler.has_commits():
            return -inf
        at = self._session.started_at + min(self._renewal, self._scheduler.claim_interval())
        late = self._pending[0].started_at + self._scheduler.claim_after()
        return min(at, late) if self._session.started_at < late else at

    def _next_exchange(self) -> Exchange:
        commits = self._scheduler.take_commits()
        room = self._scheduler.room()
        in_doubt, self._session.in_doubt = self._session.in_doubt, False
        self._stats.committed(commits, now())
        self._observers.tell(lambda each: each.committed(commits))
        if self._owed and any(commit.id == self._owed for commit in commits):
            self._owed = ""
        self._seat.call += 1
        return Exchange(
            self._seat.name,
            self._seat.epoch,
            self._seat.call,
            commits,
            Room(0, 0, room.block_size) if self._stopping or self._gives_way else room,
            idle=not self._pending and not self._stopping,
            figures=self._figures if in_doubt else None,
            counters=self._stats.take_counters(self._scheduler.take_counters()),
            gauges=self._stats.gauges(self._ready) | self._scheduler.gauges() | self._process_gauges(),
            summary=self._stats.summary if self._ready else "",
            holds=self._scheduler.held() if in_doubt else None,
        )

    def _end_exchange(self) -> None:
        """Process the reply if it has arrived."""
        received = self._session.receive()
        if received is None:
            return
        exchange, reply = received
        received_at = now()
        self._stats.exchanged(received_at - self._session.started_at)
        self._stats.claimed(reply.claims, reply.foreign, received_at)
        self._scheduler.drop(reply.foreign)
        self._stats.resent(self._scheduler.rewind(reply.have))
        self._claimed = [claim.id for claim in reply.claims]
        self._observers.tell(lambda each: each.claimed(reply.claims, reply.foreign))
        self._scheduler.add(reply.claims)
        self._scheduler.cancel(reply.cancelled)
        self._scheduler.forget(reply.forgotten if exchange.holds is None else None)  # what was lost is not told
        self._draining.told(reply.surplus, received_at)
        work = reply.claims or self._scheduler.has_commits() or self._session.in_doubt
        self._nothing_waits = exchange.idle and not work

    # --- the end ---------------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return self._stopping and not (self._pending or self._session.busy or self._scheduler.has_commits())

    async def _commit_rest(self) -> None:
        """After the engine was lost, commit what it finished before, for at most one lease: requests that got a token
        are not suspected of having killed it. Raises StaleEpoch if the seat, and so perhaps the engine, has another
        owner.
        """
        self._stopping, self._ready = True, False
        self._record_finished()
        give_up = now() + self._lease
        try:
            while (self._session.busy or self._scheduler.has_commits()) and now() < give_up:
                self._begin_exchange()
                until = min(self._next_call_at(), give_up)
                await wait_any(self._session.pending_calls, until - now())
                self._end_exchange()
        except OrcaError:
            raise
        except Exception:
            log.exception("seat %s: the tokens from before the engine's death cannot be committed", self._seat.name)

    def _known_requests(self) -> set[str]:
        """Return all requests that an exception of the scheduler can be about."""
        return {*self._scheduler.held(), *self._claimed, *self.in_flight}

    async def _close(self) -> None:
        await self._session.close()
        for pending in self._pending:
            pending.result.add_done_callback(discard_outcome)
        self._observers.tell(lambda each: each.close(self._left_by))
        self._engine_lost.cancel()
        self._engine_lost.add_done_callback(discard_outcome)


class Draining:
    """A surplus seat gets no requests (see `services/seats.py`). Those that it has may finish for `timeout` seconds;
    then they go back to the pool with their tokens. Times are of the loop's clock."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until = inf

    def told(self, surplus: bool, now: float) -> None:
        """The pool has said whether the seat is surplus. It may be wanted again before it is drained."""
        if not surplus:
            self._until = inf
        elif self._until == inf:
            self._until = now + self._timeout

    def is_over(self, now: float, held: Callable[[], Sequence[str]]) -> bool:
        """Whether the seat can be given back: it is surplus, and holds no request or has had its time."""
        return self._until < inf and (now >= self._until or not held())
