"""The loop's engine, at the other end of a Ray actor call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from typing import Any

import ray

from actors.engine import EngineStatus
from actors.lifeline import watch
from services.errors import EngineLost, StaleEpoch
from services.iteration_cost import IterationCost
from services.messages import EngineFigures, Iteration, IterationResult
from services.pool_line import forget
from services.wire import pack, unpack

KILL_TIMEOUT = 5.0  # seconds until a killed process must be gone

log = logging.getLogger(__name__)


class EngineLink:
    """Sends iterations to one engine process, and knows within milliseconds when that has died.

    Ray takes one to two seconds to say so, and starts another process under the same actor: this link is to the
    process it was made for, and over with it. `dead` is done then.
    """

    def __init__(self, actor: ray.actor.ActorHandle[Any], status: EngineStatus, here: str) -> None:
        """`here` is the node this process runs on."""
        self.status = status
        self.first_result = 0.0  # Unix time
        self.dead = asyncio.create_task(watch(status.lifeline, here))
        self._actor = actor
        self._here = here

    async def attach(self, epoch: str, timeout: float, cost: IterationCost) -> tuple[EngineFigures, float]:
        """Make the engine serve `epoch`, loaded; its figures, and the seconds it spent loading. `cost` learns from its
        warm-up. Raises EngineLost."""
        try:
            async with asyncio.timeout(timeout):
                figures, loading, first, seconds = await self._answer(self._actor.attach.remote(epoch))
        except TimeoutError:
            raise EngineLost(f"an engine did not load within {timeout:.0f} s") from None
        cost.finished(unpack(Iteration, first), seconds)
        return unpack(EngineFigures, figures), loading

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        call: Any = self._actor.run.remote(pack(iteration))  # sent now, not when somebody awaits
        return asyncio.ensure_future(self._result(call))

    async def _result(self, call: Any) -> IterationResult:
        result = unpack(IterationResult, await self._answer(call))
        self.first_result = self.first_result or time.time()
        return result

    async def _answer(self, call: Any) -> Any:
        """What the actor answers, unless its process dies first. What Ray says of that becomes `EngineLost`."""
        answer: asyncio.Future[Any] = asyncio.wrap_future(call.future())
        await asyncio.wait({answer, self.dead}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.add_done_callback(forget)
            raise EngineLost(f"engine process {self.status.pid} died")
        try:
            return answer.result()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StaleEpoch):
                raise StaleEpoch(str(error.cause)) from error
            raise EngineLost(f"the engine failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise EngineLost(f"the engine is gone: {error}") from error

    async def keep(self, every: float) -> None:
        """Give the engine a sign of life each `every` seconds, for ever."""
        while True:
            self._actor.status.remote()
            await asyncio.sleep(every)

    async def kill(self) -> None:
        """End the process if it lives: it is stuck, or failed in a way that nobody can tell what state it is in. Ray
        starts another in its place."""
        if self.dead.done():
            return
        log.warning("killing engine process %d", self.status.pid)
        if self.status.node == self._here:  # its lifeline is open, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.status.pid, signal.SIGKILL)
        else:
            ray.kill(self._actor, no_restart=False)
        await asyncio.wait({self.dead}, timeout=KILL_TIMEOUT)

    def close(self) -> None:
        """Watch no longer; the engine goes on."""
        self.dead.cancel()
