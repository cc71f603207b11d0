"""The loop's engine, at the other end of a Ray actor call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import ray

from actors.engine import EngineStatus
from actors.engine_pair import Answer, kill
from actors.lifeline import watch
from services.errors import EngineLost, OtherWeights, StaleEpoch
from services.loop.iteration_cost import IterationCost
from services.loop.pool_session import discard_outcome
from services.messages import EngineFigures, Iteration, IterationResult
from services.wire import pack, unpack

KILL_TIMEOUT = 5.0  # seconds until a killed process must be gone
SIGN_OF_LIFE = 15.0  # seconds between calls that keep engine processes from ending themselves
SILENCE = 60.0  # seconds without an answer to such a call after which a process that loads stands still


class EngineLink:
    """Sends iterations to an engine's processes, one for each rank, and knows within milliseconds when one has died.

    Ray takes one to two seconds to say so, and starts another process under the same actor: this link is to the
    processes it was made for, and over with the first of them. `dead` is done then.
    """

    def __init__(self, ranks: Sequence[Answer], sampler: int, here: str) -> None:
        """`sampler` is the rank whose results have the tokens. `here` is the node this process runs on."""
        self.statuses = [status for status, _ in ranks]
        self.first_result = 0.0  # Unix time
        self._actors = [actor for _, actor in ranks]
        self._deaths = [asyncio.create_task(watch(status.lifeline, here)) for status in self.statuses]
        self.dead = asyncio.create_task(_first_of(self._deaths))
        self._sampler = sampler
        self._unheard: list[bytes] = []  # results that the other ranks do not know yet
        self._here = here

    @property
    def status(self) -> EngineStatus:
        """Of the first rank."""
        return self.statuses[0]

    @property
    def names(self) -> list[str]:
        """Of the actors, by rank."""
        return [status.name for status in self.statuses]

    @property
    def gone(self) -> bool:
        """Whether all processes are dead."""
        return all(death.done() for death in self._deaths)

    async def attach(self, epoch: str, timeout: float, cost: IterationCost) -> tuple[EngineFigures, float]:
        """Make the engine serve `epoch`, loaded; its figures, and the seconds it spent loading. `cost` learns from its
        warm-up. Raises EngineLost, also for a process that stands still, and OtherWeights."""
        for actor in self._actors:
            actor.expect.remote(epoch)
        calls = [actor.attach.remote(epoch, self.status.meeting) for actor in self._actors]
        attaching: asyncio.Future[Any] = asyncio.gather(*map(self._answer, calls))
        silence: asyncio.Future[Any] = asyncio.create_task(self._silence())
        try:
            await asyncio.wait({attaching, silence}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if attaching.done():
                answers = attaching.result()
            elif silence.done():
                raise EngineLost(f"an engine said nothing for {SILENCE:.0f} s")
            else:
                raise EngineLost(f"an engine was not ready within {timeout:.0f} s")
        finally:
            attaching.cancel()
            silence.cancel()
        figures, _, first, seconds = answers[self._sampler]
        cost.finished(unpack(Iteration, first), seconds)
        return unpack(EngineFigures, figures), max(loading for _, loading, _, _ in answers)

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        packed, unheard = pack(iteration), self._unheard
        self._unheard = []
        calls = [actor.run.remote(packed, *unheard) for actor in self._actors]  # sent now, not when somebody awaits
        return asyncio.ensure_future(self._result(calls))

    async def _result(self, calls: list[Any]) -> IterationResult:
        answers = await asyncio.gather(*map(self._answer, calls))
        if len(answers) > 1:
            self._unheard.append(answers[self._sampler])
        self.first_result = self.first_result or time.time()
        return unpack(IterationResult, answers[self._sampler])

    async def _answer(self, call: Any) -> Any:
        """What the actor answers, unless its process dies first. What Ray says of that becomes `EngineLost`."""
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

    async def _silence(self) -> None:
        """Return when one of the processes has not answered for `SILENCE` seconds, or is gone for good."""
        with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
            while True:
                async with asyncio.timeout(SILENCE):
                    await asyncio.gather(*(actor.status.remote() for actor in self._actors))
                await asyncio.sleep(1.0)

    async def keep(self) -> None:
        """Give the engine signs of life, for ever."""
        while True:
            for actor in self._actors:
                actor.status.remote()
            await asyncio.sleep(SIGN_OF_LIFE)

    async def kill(self) -> None:
        """End the processes that live: one is stuck, or failed in a way that nobody can tell what state it is in, or
        has lost another, without which it is nothing. Ray starts others in their place."""
        for status, actor, death in zip(self.statuses, self._actors, self._deaths, strict=True):
            if not death.done():
                kill((status, actor), self._here)
        await asyncio.wait(self._deaths, timeout=KILL_TIMEOUT)

    def close(self) -> None:
        """Watch no longer; the engine goes on."""
        for task in (self.dead, *self._deaths):
            task.cancel()


async def _first_of(deaths: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
