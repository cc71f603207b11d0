"""EngineLink: the EngineLoop's engine, at the other end of Ray actor calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle

from actors.engine import EngineStatus
from actors.liveness import watch
from services.errors import EngineLost, OtherWeights, StaleEpoch
from services.loop.iteration_cost import IterationCost
from services.loop.pool_session import discard_outcome
from services.messages import EngineFigures, Iteration, IterationResult
from services.scheduling import WarmUpTime
from services.wire import pack, unpack

KILL_TIMEOUT = 5.0  # seconds in which a killed process must be gone
KEEP_ALIVE_INTERVAL = 15.0  # seconds between calls that keep engine processes from ending themselves as orphans
SILENCE = 60.0  # seconds without an answer to such a call after which a process that loads counts as stuck

log = logging.getLogger(__name__)


class EngineProcess(NamedTuple):
    """An engine process, and its actor, under which another process starts when this one has died."""

    status: EngineStatus
    actor: ActorHandle[Any]


class EngineLink:
    """Sends iterations to the processes of an engine, one per rank, and knows within milliseconds when one has died.

    Ray needs one to two seconds to report a death, and starts another process under the same actor. A link belongs to
    the processes for which it was made: it is over when the first of them dies, and `dead` is done then.
    """

    def __init__(self, ranks: Sequence[EngineProcess], sampler: int, node: str) -> None:
        """`ranks` are the processes by rank. `sampler` is the rank whose results contain the tokens. `node` is the node
        of the calling process."""
        self.statuses = [status for status, _ in ranks]
        self.first_result = 0.0  # Unix time
        self.warm_up: WarmUpTime | None = None  # of the rank that samples; set by `serve`
        self._actors = [actor for _, actor in ranks]
        self._deaths = [asyncio.create_task(watch(status.lifeline, node)) for status in self.statuses]
        self.dead = asyncio.create_task(_first_of(self._deaths))
        self._sampler = sampler
        self._missed: list[bytes] = []  # results that the ranks which do not sample have not seen yet
        self._node = node

    @property
    def status(self) -> EngineStatus:
        """The status of rank 0 when the link was made."""
        return self.statuses[0]

    @property
    def names(self) -> list[str]:
        """The names of the actors, by rank."""
        return [status.name for status in self.statuses]

    @property
    def gone(self) -> bool:
        """Whether all processes are dead."""
        return all(death.done() for death in self._deaths)

    async def serve(self, epoch: str, timeout: float, cost: IterationCost) -> tuple[EngineFigures, float]:
        """Make the engine serve `epoch`, with its weights loaded, within `timeout` seconds.

        Returns the engine's figures and the seconds it spent loading; `cost` learns from its warm-up. Raises EngineLost
        if a process dies, is stuck or is not ready in time, and OtherWeights.
        """
        for actor in self._actors:
            actor.expect.remote(epoch)
        calls = [actor.serve.remote(epoch, self.status.meeting) for actor in self._actors]
        serving: asyncio.Future[Any] = asyncio.gather(*map(self._answer, calls))
        silence: asyncio.Future[Any] = asyncio.create_task(self._wait_for_silence())
        try:
            await asyncio.wait({serving, silence}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                answers = serving.result()
            elif silence.done():
                raise EngineLost(f"an engine did not answer for {SILENCE:.0f} s")
            else:
                raise EngineLost(f"an engine was not ready within {timeout:.0f} s")
        finally:
            serving.cancel()
            silence.cancel()
        figures, _, first, seconds = answers[self._sampler]
        iteration = unpack(Iteration, first)
        cost.finished(iteration, seconds)
        self.warm_up = WarmUpTime(sum(iteration.scheduled.values()), seconds)
        return unpack(EngineFigures, figures), max(loading for _, loading, _, _ in answers)

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        packed, missed = pack(iteration), self._missed
        self._missed = []
        calls = [actor.run.remote(packed, *missed) for actor in self._actors]  # sent now, not when awaited
        return asyncio.ensure_future(self._result(calls))

    async def _result(self, calls: list[Any]) -> IterationResult:
        answers = await asyncio.gather(*map(self._answer, calls))
        if len(answers) > 1:
            self._missed.append(answers[self._sampler])
        self.first_result = self.first_result or time.time()
        return unpack(IterationResult, answers[self._sampler])

    async def _answer(self, call: Any) -> Any:
        """The actor's answer. Raises EngineLost if a process of the engine dies first, or if Ray reports a failure."""
        answer: asyncio.Future[Any] = asyncio.wrap_future(call.future())
        answer.add_done_callback(discard_outcome)
        await asyncio.wait({answer, self.dead}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            dead = [status.pid for status, death in zip(self.statuses, self._deaths, strict=True) if death.done()]
            raise EngineLost(f"engine process {', '.join(map(str, dead))} died")
        try:
            return answer.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (StaleEpoch, OtherWeights)):
                raise type(error.cause)(str(error.cause)) from error
            raise EngineLost(f"the engine failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise EngineLost(f"the engine is gone: {error}") from error

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
        """Stop watching the processes. The engine goes on."""
        for task in (self.dead, *self._deaths):
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


async def _first_of(deaths: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
