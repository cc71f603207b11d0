"""The processes of a seat's engine: for each rank a pair, of which one has the weights and the other is a spare.

Most engines have one rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from actors.engine import EngineStatus
from actors.engine_build import build_of, layout_of
from actors.engine_client import KEEP_ALIVE_INTERVAL, Attachment, EngineClient, EngineProcess, kill
from actors.engine_record import described, forget, note
from actors.liveness import watch
from actors.placement import engine_label, engine_names, ensure_engine, find_engine, remove_engine
from services.background import quiet_moment
from services.errors import EngineLost, ModelError, StaleEpoch
from services.loop.iteration_cost import IterationCost
from services.settings.settings import Settings

LOAD_TIMEOUT = 900.0  # seconds to load the weights
REUSE_TIMEOUT = 60.0  # seconds to finish the iteration in flight, if the weights are loaded
START_TIMEOUT = 900.0  # seconds a process may take to import all it needs
PATIENCE = 2.0  # seconds to wait, once one process has answered, for the other, which lives and has the weights
POLL = 0.05  # seconds until a spare is asked again whether the other is dead: memory is freed before the mark goes
MAX_FAILURES = 2  # times in a row that a spare may fail to stand by before it is killed
RETRY_PAUSE = 0.2  # seconds before an actor that cannot be reached is asked again

CheckOwner = Callable[[], Awaitable[None]]  # raises StaleEpoch if another process owns the seat

log = logging.getLogger(__name__)


class EngineProcesses:
    """The processes of the engine of seat `index`, for a scheduler on the node `node`. `check_owner` is called before
    anything is killed."""

    def __init__(self, settings: Settings, index: int, node: str, check_owner: CheckOwner) -> None:
        self._settings, self._check_owner = settings, check_owner
        self._engine = engine_label(index, settings.tag)
        self._index = index
        self._node = node
        self._build = build_of(settings)
        self._layout = layout_of(settings)
        self._has_spare = [False] * self._layout.size  # by rank, when it was last checked

    @property
    def has_spare(self) -> bool:
        """Whether each rank had a spare when it was last checked."""
        return all(self._has_spare)

    async def open_client(self, epoch: str, cost: IterationCost) -> tuple[EngineClient, Attachment]:
        """Choose a process for each rank and let them serve `epoch`, with the weights loaded.

        Returns a client to them and what they have; `cost` learns how fast the engine is. Processes that do not become
        ready are killed, since their state is unknown: a rank may wait for ever for one that is dead or stopped.

        Raises StaleEpoch, ModelError if the engine refuses the model or its files have changed, and EngineLost if a
        process cannot be reached, is stuck or is not ready in time.
        """
        # loading may take longer than processes without an owner live
        keeping_alive = asyncio.create_task(self.keep_alive())
        try:
            ranks = await self._choose()
            loaded = all(process.status.epoch for process in ranks)
            client = EngineClient(ranks, self._layout.sampler, self._node)
            try:
                return client, await client.serve(epoch, REUSE_TIMEOUT if loaded else LOAD_TIMEOUT, cost)
            except BaseException as error:
                try:
                    if isinstance(error, EngineLost):
                        note(client.living, reason_of(error))
                        await self._check_owner()
                        await client.kill()
                finally:
                    client.close()
                raise
        finally:
            keeping_alive.cancel()

    async def _choose(self) -> list[EngineProcess]:
        """A process for each rank: all with weights, or all without.

        Actors of another build are replaced. If only some ranks have the weights, their processes are killed.
        """
        found = await self._ask_all()
        if any(status.build != self._build for processes in found for status, _ in processes):
            await self._check_owner()
            log.info("engine %s is of another build, replacing it", self._engine)
            await asyncio.to_thread(remove_engine, self._engine)
            found = await self._ask_all()
        ranks = _preferred(found)
        if any(not status.epoch and status.other_loaded for status, _ in ranks):
            await self._check_owner()  # a spare that takes over kills the process with weights, which does not answer
        loaded = [process for process in ranks if process.status.epoch]
        if 0 < len(loaded) < len(ranks):
            await self._check_owner()
            await self._kill(loaded)
            ranks = _preferred(await self._ask_all())
        return ranks

    async def keep_spares(
        self,
        epoch: str,
        names: Sequence[str],
        interval: float,
        busy: Callable[[], Awaitable[bool]],
    ) -> None:
        """Keep a spare beside each of the actors `names`, one per rank, until the seat has another owner.

        The first one starts in a quiet moment of the engine, which `busy` tells. Spares are checked every `interval`
        seconds; one that fails twice in a row is killed.
        """
        spares = [name for rank in range(self._layout.size) for name in engine_names(self._engine, rank)]
        if not all([await asyncio.to_thread(find_engine, name) for name in spares]):
            await quiet_moment(busy)
        await asyncio.gather(*(self._keep_spare(rank, name, epoch, interval) for rank, name in enumerate(names)))

    async def give_back(self, epoch: str, names: Sequence[str]) -> None:
        """Let the processes of the actors `names`, one per rank, drop the weights, and end their spares. Processes that
        do not answer are removed. Only the owner of the seat, under `epoch`, may call this. Raises EngineLost if Ray
        cannot do it now."""
        self._has_spare = [False] * self._layout.size
        try:
            async with asyncio.timeout(REUSE_TIMEOUT):
                await asyncio.gather(*(self._give_back(epoch, rank, name) for rank, name in enumerate(names)))
        except (TimeoutError, ray.exceptions.RayError) as error:
            log.warning("engine %s does not give back its weights, and is removed: %s", self._engine, error)
            await self.remove()

    async def _give_back(self, epoch: str, rank: int, name: str) -> None:
        (other,) = set(engine_names(self._engine, rank)) - {name}
        if spare := await asyncio.to_thread(find_engine, other):
            forget(other)  # it is no failure of a start
            await asyncio.to_thread(ray.kill, spare, no_restart=True)
        if actor := await asyncio.to_thread(find_engine, name):
            await actor.drop.remote(epoch)

    async def remove(self) -> None:
        """End all processes of the engine for good, and free their resources. Only the owner of the seat may call this.
        Raises EngineLost if Ray cannot do it now."""
        try:
            await asyncio.to_thread(remove_engine, self._engine)
        except ray.exceptions.RayError as error:
            raise EngineLost(f"engine {self._engine} cannot be removed: {error}") from error

    async def keep_alive(self) -> None:
        """Send all processes that exist signs of life for ever."""
        ranks = range(self._layout.size)
        while True:
            for name in itertools.chain.from_iterable(engine_names(self._engine, rank) for rank in ranks):
                with contextlib.suppress(ray.exceptions.RayError):
                    if actor := await asyncio.to_thread(find_engine, name):
                        actor.status.remote()
            await asyncio.sleep(KEEP_ALIVE_INTERVAL)

    async def _kill(self, ranks: Sequence[EngineProcess]) -> None:
        client = EngineClient(ranks, 0, self._node)
        try:
            await client.kill()
        finally:
            client.close()

    async def _ask_all(self) -> list[list[EngineProcess]]:
        return await asyncio.gather(*(self._ask_rank(rank) for rank in range(self._layout.size)))

    async def _ask_rank(self, rank: int) -> list[EngineProcess]:
        """Ask the processes of a rank for their status.

        Returns as soon as one has answered that makes the other's answer unnecessary: it has the weights, or is
        loading them, or sees that the other has none. Otherwise waits `PATIENCE` seconds for the other.
        Raises EngineLost if none answers.
        """
        names = engine_names(self._engine, rank)
        there = [which for which, name in enumerate(names) if await asyncio.to_thread(find_engine, name)]
        asking = {which: asyncio.create_task(self._ask(rank, which)) for which in there or [0]}
        answers: dict[int, EngineProcess] = {}
        try:
            async with asyncio.timeout(START_TIMEOUT) as limit:
                while len(answers) < len(asking) and not any(_suffices(status) for status, _ in answers.values()):
                    await asyncio.wait(asking.values(), return_when=asyncio.FIRST_COMPLETED)
                    if not answers:
                        limit.reschedule(asyncio.get_running_loop().time() + PATIENCE)
                    for which in [which for which, task in asking.items() if task.done()]:
                        answers[which] = asking[which].result()
                        asking[which] = asyncio.create_task(self._ask(rank, which, after=POLL))
        except TimeoutError:
            if not answers:
                raise EngineLost(f"engine {self._engine}: no process answered within {START_TIMEOUT:.0f} s") from None
        finally:
            for task in asking.values():
                task.cancel()
        return list(answers.values())

    async def _ask(self, rank: int, which: int, after: float = 0.0) -> EngineProcess:
        """The process of one of a rank's two actors, as soon as it answers. Creates the actor if there is none."""
        await asyncio.sleep(after)
        while True:
            try:
                actor = await asyncio.to_thread(ensure_engine, self._settings, self._index, rank, which)
                return EngineProcess(await actor.status.remote(), actor)
            except (ray.exceptions.RayError, ValueError) as error:  # it ended for good; its name is free soon
                log.warning("%s cannot be reached: %s", engine_names(self._engine, rank)[which], error)
                await asyncio.sleep(RETRY_PAUSE)

    async def _keep_spare(self, rank: int, name: str, epoch: str, interval: float) -> None:
        """Keep a spare of this rank, alive and without weights, beside the actor `name`, until the seat has another
        owner."""
        which = 1 - engine_names(self._engine, rank).index(name)
        with contextlib.suppress(StaleEpoch):
            while True:
                spare = await self._ask(rank, which)
                death = asyncio.create_task(watch(spare.status.lifeline, self._node))
                try:
                    with contextlib.suppress(ray.exceptions.RayError):  # the actor has ended for good
                        await self._supervise(rank, spare, name, death, epoch, interval)
                finally:
                    death.cancel()
                    self._has_spare[rank] = False

    async def _supervise(
        self,
        rank: int,
        spare: EngineProcess,
        name: str,
        death: asyncio.Task[None],
        epoch: str,
        interval: float,
    ) -> None:
        """Check the spare until its death. It is killed if it does not respond: it is stopped, or waits for ranks that
        are dead, of whose death gloo does not always learn."""
        failures = 0
        while not death.done():
            self._has_spare[rank] = await _stands_by(spare.actor, name, epoch, interval)
            if self._has_spare[rank]:
                failures = 0
                await asyncio.wait({death}, timeout=interval)
            elif (failures := failures + 1) == MAX_FAILURES:
                await self._check_owner()
                if not death.done():
                    kill(spare, self._node)
                await death


def reason_of(error: EngineLost | ModelError) -> str:
    """Why an engine is lost or refuses its model, in one line: the exception of one of its ranks, if there is one.
    Clients read it, so it has no traceback and no address of Ray's."""
    cause, said = error.__cause__, str(error)
    if isinstance(error, EngineLost) and isinstance(cause, ray.exceptions.RayTaskError):
        return described(cause.cause)
    if isinstance(error, EngineLost):
        said = said.partition("\n")[0]
    return " ".join(said.split())


def _preferred(found: Sequence[Sequence[EngineProcess]]) -> list[EngineProcess]:
    """One process of each rank: the one with weights, the later epoch's if both have them; else one that is loading
    them; else a spare."""
    return [max(processes, key=lambda process: process.status.order) for processes in found]


async def _stands_by(actor: ActorHandle[Any], name: str, epoch: str, timeout: float) -> bool:
    """Whether the spare answers in time, and has no weights afterwards. The call is also a sign of life. The spare then
    holds the memory of the actor `name`."""
    try:
        async with asyncio.timeout(timeout):
            status: EngineStatus = await actor.status.remote()
            if status.epoch is not None:
                await actor.drop.remote(epoch)
    except TimeoutError:
        return False
    await _share_memory(name, actor, timeout)
    return True


async def _share_memory(name: str, spare: ActorHandle[Any], timeout: float) -> None:
    """Let the spare hold the memory of the actor `name`, if that answers in time."""
    try:
        async with asyncio.timeout(timeout):
            if loaded := await asyncio.to_thread(find_engine, name):
                path, warm_up_seconds = await loaded.memory.remote()
                if path:
                    await spare.hold.remote(path, warm_up_seconds)
    except (TimeoutError, ray.exceptions.RayError) as error:
        log.warning("the spare of %s does not share its memory: %s", name, error)


def _suffices(status: EngineStatus) -> bool:
    """Whether the other process need not be asked."""
    return status.epoch is not None or status.loading or not status.other_loaded
