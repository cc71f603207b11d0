"""The loop's engine, at the other end of a Ray actor call."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from services.errors import EngineLost, StaleEpoch
from services.messages import Iteration, IterationResult
from services.wire import pack, unpack


class EngineLink:
    """Sends iterations to an engine actor; what Ray says of its death becomes `EngineLost`."""

    def __init__(self, actor: ray.actor.ActorHandle[Any]) -> None:
        self._actor = actor

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        call: Any = self._actor.run.remote(pack(iteration))  # sent now, not when somebody awaits
        return asyncio.ensure_future(self._result(call))

    async def _result(self, call: Any) -> IterationResult:
        try:
            return unpack(IterationResult, await call)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StaleEpoch):
                raise StaleEpoch(str(error.cause)) from error
            raise EngineLost(f"the engine failed: {error}") from error
        except ray.exceptions.RayError as error:
            raise EngineLost(f"the engine is gone: {error}") from error

    async def keep(self, every: float) -> None:
        """Give the actor a sign of life each `every` seconds, for ever."""
        while True:
            self._actor.keep.remote()
            await asyncio.sleep(every)
