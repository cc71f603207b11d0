"""EngineClient: the EngineLoop's engine, in other processes. Iterations go over channels, control by Ray calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import ray
from ray.actor import ActorHandle

from actors.channel import Answer, Door, EngineChannel, Order, framed
from actors.engine import EngineStatus, ServeReply
from actors.liveness import stopped, watch
from services.engine.batch.block_names import common
from services.errors import EngineLost, EngineStuck, ModelError, NoRoom, StaleEpoch
from services.loop.iteration_cost import IterationCost
from services.loop.pool_session import discard_outcome
from services.messages import EngineFigures, Iteration, IterationResult
from services.scheduling import WarmUpTime
from services.wire import pack, unpack

KILL_TIMEOUT = 5.0  # seconds in which a killed process must be gone
KEEP_ALIVE_INTERVAL = 15.0  # seconds between calls that keep engine processes from ending themselves as orphans
SILENCE = 60.0  # seconds without an answer to such a call after which a process that loads counts as stuck
TOGETHER = 10.0  # seconds in which all ranks say that they cannot load: they wait for memory about as long as this one
DEATH_NOTICE = 2.0  # seconds in which the death of a process that has closed its channel is seen by its lifeline

T = TypeVar("T")

log = logging.getLogger(__name__)


class EngineProcess(NamedTuple):
    """An engine process, and its actor, under which another process starts when this one has died."""

    status: EngineStatus
    actor: ActorHandle[Any]


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an owner learns from an engine that is ready to serve it."""

    figures: EngineFigures
    loading: float  # seconds spent loading the weights
    warm_up: WarmUpTime
    cached_blocks: dict[int, bytes]  # names of the full blocks that all ranks have from earlier owners


class EngineClient:
    """Sends iterations to the processes of an engine, one per rank. It knows within milliseconds when one has died, and
    within a second when one on its node is stopped.

    Ray needs one to two seconds to report a death, and starts another process under the same actor. A client belongs to
    the processes for which it was made: it is over when the first of them dies, and `dead` is done then. After the
    first failure nothing more is sent, and all iterations in flight end with it.
    """

    def __init__(self, ranks: Sequence[EngineProcess], sampler: int, node: str) -> None:
        """`ranks` are the processes by rank. `sampler` is the rank whose results contain the tokens. `node` is the node
        of the calling process."""
        self.first_result = 0.0  # Unix time; 0 before it
        self.statuses = [status for status, _ in ranks]
        self._actors = [actor for _, actor in ranks]
        self._deaths = [asyncio.create_task(watch(status.lifeline, node)) for status in self.statuses]
        self.dead = asyncio.create_task(_first_of(self._deaths))
        self.dead.add_done_callback(self._on_death)
        here = [status.pid for status in self.statuses if status.node == node]  # those of other nodes cannot be seen
        self.stopped = asyncio.create_task(stopped(here))
        self.crowded: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # it has to make room
        self._sampler = sampler
        self._node = node
        self._channels = [EngineChannel(partial(self._on_answer, rank), self._on_close) for rank in range(len(ranks))]
        self._running: deque[asyncio.Future[IterationResult]] = deque()  # oldest first
        self._results: list[deque[bytes]] = [deque() for _ in ranks]  # packed, of `_running`
        self._missed: list[bytes] = []  # results that the ranks which do not sample have not seen yet
        self._error: EngineLost | StaleEpoch | None = None
        self._closing: asyncio.TimerHandle | None = None

    @property
    def status(self) -> EngineStatus:
        """The status of rank 0 when the client was made."""
        return self.statuses[0]

    @property
    def names(self) -> list[str]:
        """The names of the actors, by rank."""
        return [status.name for status in self.statuses]

    @property
    def gone(self) -> bool:
        """Whether all processes are dead."""
        return all(death.done() for death in self._deaths)

    @property
    def living(self) -> list[int]:
        """The ids of the processes that live."""
        found = zip(self.statuses, self._deaths, strict=True)
        return [status.pid for status, death in found if not death.done()]

    async def serve(self, epoch: str, timeout: float, cost: IterationCost) -> Attachment:
        """Make the engine serve `epoch`, with its weights loaded, within `timeout` seconds. After this no iteration of
        an earlier owner runs.

        `cost` learns from its warm-up. Raises EngineLost if a process dies, is stuck or is not ready in time,
        ModelError if the engine refuses the model, and NoRoom if other engines have the memory.
        """
        for actor in self._actors:
            actor.expect.remote(epoch)
        serving: asyncio.Future[list[ServeReply]] = asyncio.ensure_future(self._attach(epoch))
        silence: asyncio.Future[Any] = asyncio.create_task(self._wait_for_silence())
        try:
            waiting = {serving, silence, self.stopped}
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                replies = serving.result()
            elif self.stopped.done():
                raise EngineStuck(f"engine process {self.stopped.result()} is stopped")
            elif silence.done():
                raise EngineLost(f"an engine did not answer for {SILENCE:.0f} s")
            else:
                raise EngineLost(f"an engine was not ready within {timeout:.0f} s")
        finally:
            serving.cancel()
            silence.cancel()
        sampler = replies[self._sampler]
        iteration = unpack(Iteration, sampler.warm_up)
        cost.finished(iteration, sampler.warm_up_seconds)
        warm_up = WarmUpTime(sum(iteration.scheduled.values()), sampler.warm_up_seconds)
        loading = max(reply.loading for reply in replies)
        names = common([reply.block_names for reply in replies])
        return Attachment(unpack(EngineFigures, sampler.figures), loading, warm_up, names)

    async def _attach(self, epoch: str) -> list[ServeReply]:
        """Let all ranks serve, and connect to them."""
        calls: list[Any] = [
            actor.serve.remote(epoch, self.status.meeting, status.node != self._node)
            for actor, status in zip(self._actors, self.statuses, strict=True)
        ]
        answers: list[ServeReply] = await self._answers([self._answer(call) for call in calls])
        try:
            await self.connect([answer.door for answer in answers])
        except OSError as error:
            raise EngineLost(f"the engine cannot be reached: {error}") from error
        return answers

    async def _answers(self, answers: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The answers of all ranks. Raises what one of them raises; and EngineLost if one cannot load and another goes
        on, which would wait for the first one at their meeting, and have the weights meanwhile."""
        asking = [asyncio.create_task(answer) for answer in answers]
        try:
            await asyncio.wait(asking, return_when=asyncio.FIRST_EXCEPTION)
            if isinstance(_worst(asking), (ModelError, NoRoom)):
                await asyncio.wait(asking, timeout=TOGETHER)
            failed = _worst(asking)
            if isinstance(failed, (ModelError, NoRoom)) and not all(task.done() for task in asking):
                raise EngineLost(f"only some ranks can load: {failed}") from failed
            if failed:
                raise failed
            return [task.result() for task in asking]
        finally:
            for task in asking:
                task.cancel()
                task.add_done_callback(discard_outcome)

    async def connect(self, doors: Sequence[Door]) -> None:
        """Connect to the ranks, which have opened these doors. Raises OSError if one of them does not listen."""
        for channel, door in zip(self._channels, doors, strict=True):
            await channel.connect(door)

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        """Send an iteration to all ranks now. Awaiting the return value gives its result, or raises EngineLost, or
        StaleEpoch if the engine has another owner."""
        result: asyncio.Future[IterationResult] = asyncio.get_running_loop().create_future()
        if self._error:
            result.set_exception(self._error)
            return result
        order = framed(Order(pack(iteration), self._missed))
        self._missed = []
        self._running.append(result)
        for channel in self._channels:
            channel.send(order)
        return result

    def _on_answer(self, rank: int, answer: Answer) -> None:
        if self._error:
            return
        if answer.leave:
            if not self.crowded.done():
                self.crowded.set_result(None)
            return
        if answer.result is None:
            self._fail(StaleEpoch(answer.error) if answer.stale else EngineLost(f"the engine failed: {answer.error}"))
            return
        self._results[rank].append(answer.result)
        if all(self._results):
            self._finish([results.popleft() for results in self._results])

    def _finish(self, results: list[bytes]) -> None:
        """The oldest iteration has the results of all ranks."""
        packed = results[self._sampler]
        if len(results) > 1:
            self._missed.append(packed)
        self.first_result = self.first_result or time.time()
        result = self._running.popleft()
        if not result.done():
            result.set_result(unpack(IterationResult, packed))

    def _on_close(self) -> None:
        """A process has closed its channel. If it is dead, its lifeline shows that within milliseconds; only of a
        process that is known to live may one be killed by its id, so the lifeline goes first."""
        if not self._error and not self._closing:
            lost = EngineLost("an engine process has closed its channel")
            self._closing = asyncio.get_running_loop().call_later(DEATH_NOTICE, self._fail, lost)

    def _fail(self, error: EngineLost | StaleEpoch) -> None:
        """End all iterations with `error`, also those that are started later. Only the first error counts."""
        self._error = self._error or error
        while self._running:
            result = self._running.popleft()
            if not result.done():
                result.set_exception(self._error)

    async def _answer(self, call: Any) -> Any:
        """The actor's answer. Raises EngineLost if a process of the engine dies first, or if Ray reports a failure."""
        answer: asyncio.Future[Any] = asyncio.wrap_future(call.future())
        answer.add_done_callback(discard_outcome)
        await asyncio.wait({answer, self.dead}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise self._death()
        try:
            return answer.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (StaleEpoch, ModelError, NoRoom)):
                raise type(error.cause)(*error.cause.args) from error
            raise EngineLost(f"the engine failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise EngineLost(f"the engine is gone: {error}") from error

    def _death(self) -> EngineLost:
        dead = [status.pid for status, death in zip(self.statuses, self._deaths, strict=True) if death.done()]
        return EngineLost(f"engine process {', '.join(map(str, dead))} died")

    def _on_death(self, dead: asyncio.Task[None]) -> None:
        if not dead.cancelled():
            self._fail(self._death())

    async def _wait_for_silence(self) -> None:
        """Return when one of the processes has not answered for `SILENCE` seconds, or has ended for good."""
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            while True:
                async with asyncio.timeout(SILENCE):
                    await asyncio.gather(*(actor.status.remote() for actor in self._actors))
                await asyncio.sleep(1.0)

    async def keep_alive(self) -> None:
        """Send the engine signs of life for ever."""
        while True:
            for actor in self._actors:
                actor.status.remote()
            await asyncio.sleep(KEEP_ALIVE_INTERVAL)

    async def kill(self) -> None:
        """Kill the processes that live: one is stuck, has failed and is in an unknown state, or has lost another rank.
        Ray starts others in their place."""
        for status, actor, death in zip(self.statuses, self._actors, self._deaths, strict=True):
            if not death.done():
                kill(EngineProcess(status, actor), self._node)
        await asyncio.wait(self._deaths, timeout=KILL_TIMEOUT)

    def close(self) -> None:
        """Stop watching the processes and close the channels. The engine goes on."""
        if self._closing:
            self._closing.cancel()
        self._fail(EngineLost("the connection to the engine is closed"))
        for channel in self._channels:
            channel.close()
        self.crowded.cancel()
        for task in (self.dead, self.stopped, *self._deaths):
            task.cancel()


def kill(process: EngineProcess, node: str) -> None:
    """Kill a process whose lifeline is open. The caller is on the node `node`. Ray starts another in its place."""
    status, actor = process
    log.warning("killing engine process %d", status.pid)
    if status.node == node:  # the process lives, so its pid is still its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGKILL)
    else:
        ray.kill(actor, no_restart=False)


def _worst(tasks: Sequence[asyncio.Task[Any]]) -> BaseException | None:
    """The exception of one of these tasks, if there is one: rather of one whose process is not in order."""
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    return min(errors, key=lambda error: isinstance(error, (ModelError, NoRoom)), default=None)


async def _first_of(deaths: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
