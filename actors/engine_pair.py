"""The two engine processes of a rank: one with weights, and a spare."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.actor import ActorHandle

from actors.engine import EngineStatus
from actors.lifeline import watch
from actors.placement import engine_names, ensure_engine, find_engine
from services.errors import EngineLost, StaleEpoch
from services.settings.settings import Settings

START_TIMEOUT = 900.0  # seconds a process may take to import all it needs
PATIENCE = 2.0  # seconds to wait for a process that lives and has the weights once the other has answered
LOOK = 0.05  # seconds until it is asked again whether that one is dead: memory goes before its mark does
LOOKS = 2  # in vain, after which a spare is killed
PAUSE = 0.2  # seconds before an actor that cannot be reached is asked again

Answer = tuple[EngineStatus, ActorHandle[Any]]

log = logging.getLogger(__name__)


class EnginePair:
    """The two engine actors of a rank of seat `index`, for a scheduler on the node `here`."""

    def __init__(self, settings: Settings, index: int, rank: int, here: str) -> None:
        self.has_spare = False  # at the last look
        self._settings = settings
        self._index = index
        self._rank = rank
        self._here = here

    async def keep_spare(
        self, epoch: str, attached: str, every: float, still_mine: Callable[[], Awaitable[None]]
    ) -> None:
        """See to it that there is a spare beside the actor named `attached`, that it stays, and has no weights, until
        `still_mine` raises StaleEpoch."""
        which = 1 - engine_names(self._index, self._rank).index(attached)
        with contextlib.suppress(StaleEpoch):
            while True:
                spare = await self._ask(which)
                death = asyncio.create_task(watch(spare[0].lifeline, self._here))
                try:
                    with contextlib.suppress(ray.exceptions.RayError):  # it ended for good
                        await self._keep_spare(spare, death, epoch, every, still_mine)
                finally:
                    death.cancel()
                    self.has_spare = False

    async def _keep_spare(
        self,
        spare: Answer,
        death: asyncio.Task[None],
        epoch: str,
        every: float,
        still_mine: Callable[[], Awaitable[None]],
    ) -> None:
        """Until its death. It is killed where it cannot do as it is told: it is stopped, or waits for ranks that are
        dead, of which gloo does not always tell it."""
        in_vain = 0
        while not death.done():
            self.has_spare = await _stands_by(spare[1], epoch, every)
            if self.has_spare:
                in_vain = 0
                await asyncio.wait({death}, timeout=every)
            elif (in_vain := in_vain + 1) == LOOKS:
                await still_mine()
                if not death.done():
                    kill(spare, self._here)
                await death

    async def keep(self, every: float) -> None:
        """Give the processes that there are signs of life, for ever."""
        while True:
            for name in engine_names(self._index, self._rank):
                with contextlib.suppress(ray.exceptions.RayError):
                    if actor := await asyncio.to_thread(find_engine, name):
                        actor.status.remote()
            await asyncio.sleep(every)

    async def ask(self) -> list[Answer]:
        """What the processes say: as soon as one has answered that has weights or gets them, or sees that the other has
        none; else after `PATIENCE`. Raises EngineLost when none answers."""
        asking = {0: asyncio.create_task(self._ask(0))}
        answers: dict[int, Answer] = {}
        try:
            if await asyncio.to_thread(find_engine, engine_names(self._index, self._rank)[1]):
                asking[1] = asyncio.create_task(self._ask(1))
            async with asyncio.timeout(START_TIMEOUT) as limit:
                while len(answers) < len(asking) and not any(_settles(status) for status, _ in answers.values()):
                    await asyncio.wait(asking.values(), return_when=asyncio.FIRST_COMPLETED)
                    if not answers:
                        limit.reschedule(asyncio.get_running_loop().time() + PATIENCE)
                    for which in [which for which, task in asking.items() if task.done()]:
                        answers[which] = asking[which].result()
                        asking[which] = asyncio.create_task(self._ask(which, after=LOOK))
        except TimeoutError:
            if not answers:
                raise EngineLost(f"engine {self._index}: no process answered within {START_TIMEOUT:.0f} s") from None
        finally:
            for task in asking.values():
                task.cancel()
        return list(answers.values())

    async def _ask(self, which: int, after: float = 0.0) -> Answer:
        """Its status, whenever it can give it, and its actor."""
        await asyncio.sleep(after)
        while True:
            try:
                actor = await asyncio.to_thread(ensure_engine, self._settings, self._index, self._rank, which)
                status: EngineStatus = await actor.status.remote()
                return status, actor
            except (ray.exceptions.RayError, ValueError) as error:  # it ended for good, its name or place is free soon
                log.warning("%s cannot be reached: %s", engine_names(self._index, self._rank)[which], error)
                await asyncio.sleep(PAUSE)


def kill(process: Answer, here: str) -> None:
    """End a process whose lifeline is open, seen from one on the node `here`. Ray starts another in its place."""
    status, actor = process
    log.warning("killing engine process %d", status.pid)
    if status.node == here:  # it lives, so the pid is still its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGKILL)
    else:
        ray.kill(actor, no_restart=False)


async def _stands_by(actor: ActorHandle[Any], epoch: str, timeout: float) -> bool:
    """Whether it answers in time, and has no weights afterwards. This is its owner's sign of life, too."""
    try:
        async with asyncio.timeout(timeout):
            status: EngineStatus = await actor.status.remote()
            if status.epoch is not None:
                await actor.drop.remote(epoch)
    except TimeoutError:
        return False
    return True


def _settles(status: EngineStatus) -> bool:
    """Whether nobody else need be asked."""
    return status.epoch is not None or status.loading or not status.other_loaded
