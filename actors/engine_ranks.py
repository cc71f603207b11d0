"""The processes of a seat's engine: a pair for each rank, of which one is attached to. Most engines have one rank."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from actors.engine import build_of, layout_of
from actors.engine_link import SIGN_OF_LIFE, EngineLink
from actors.engine_pair import Answer, EnginePair
from actors.placement import remove_engine
from services.errors import EngineLost
from services.loop.iteration_cost import IterationCost
from services.messages import EngineFigures
from services.settings.settings import Settings

LOAD_TIMEOUT = 900.0  # seconds to load the weights
REUSE_TIMEOUT = 60.0  # seconds to finish the iteration in flight, with weights

log = logging.getLogger(__name__)


class EngineRanks:
    """The engine of seat `index`, for a scheduler on the node `here`."""

    def __init__(self, settings: Settings, index: int, here: str) -> None:
        self._index = index
        self._here = here
        self._build = build_of(settings)
        self._layout = layout_of(settings)
        self._pairs = [EnginePair(settings, index, rank, here) for rank in range(self._layout.size)]

    @property
    def has_spare(self) -> bool:
        """Whether each rank had one at the last look."""
        return all(pair.has_spare for pair in self._pairs)

    async def attach(
        self, epoch: str, still_mine: Callable[[], Awaitable[None]], cost: IterationCost
    ) -> tuple[EngineLink, EngineFigures, float]:
        """A link to the processes that have the weights, or else to spares, which load them now. They serve `epoch`.

        Also their figures, and the seconds of loading; `cost` learns how fast they are. Actors of another build are
        replaced; of several ranks those with weights are killed where others have none, and so are all that cannot be
        attached to: nobody knows their state, and ranks may wait for ever for one that is dead or stopped, an engine
        for its device. All that after `still_mine` has not raised StaleEpoch. Raises EngineLost when one cannot
        be reached, stands still or is not ready in time, and OtherWeights where the model's files have changed.
        """
        keeping = asyncio.create_task(self._keep())  # loading may take longer than any of them waits for an owner
        try:
            return await self._attach(epoch, still_mine, cost)
        finally:
            keeping.cancel()

    async def _attach(
        self, epoch: str, still_mine: Callable[[], Awaitable[None]], cost: IterationCost
    ) -> tuple[EngineLink, EngineFigures, float]:
        answers = await self._ask()
        if any(status.build != self._build for each in answers for status, _ in each):
            await still_mine()
            log.info("engine %d is of another build, replacing it", self._index)
            await asyncio.to_thread(remove_engine, self._index)
            answers = await self._ask()
        ranks = _with_weights(answers)
        loaded = [answer for answer in ranks if answer[0].epoch]
        if 0 < len(loaded) < len(ranks):
            await still_mine()
            await self._end(loaded)
            ranks, loaded = _with_weights(await self._ask()), []
        link = EngineLink(ranks, self._layout.sampler, self._here)
        try:
            return link, *await link.attach(epoch, REUSE_TIMEOUT if loaded else LOAD_TIMEOUT, cost)
        except BaseException as error:
            try:
                if isinstance(error, EngineLost):
                    await still_mine()
                    await link.kill()
            finally:
                link.close()
            raise

    async def keep_spares(
        self, epoch: str, attached: Sequence[str], every: float, still_mine: Callable[[], Awaitable[None]]
    ) -> None:
        """See to it that there is a spare beside each of the actors named `attached`, one a rank, until `still_mine`
        raises StaleEpoch. One that cannot be attached to is killed after twice `every` seconds."""
        both = zip(self._pairs, attached, strict=True)
        await asyncio.gather(*(pair.keep_spare(epoch, name, every, still_mine) for pair, name in both))

    async def _keep(self) -> None:
        await asyncio.gather(*(pair.keep(SIGN_OF_LIFE) for pair in self._pairs))

    async def _end(self, ranks: Sequence[Answer]) -> None:
        """Kill these processes."""
        link = EngineLink(ranks, 0, self._here)
        try:
            await link.kill()
        finally:
            link.close()

    async def _ask(self) -> list[list[Answer]]:
        return await asyncio.gather(*(pair.ask() for pair in self._pairs))


def _with_weights(answers: Sequence[Sequence[Answer]]) -> list[Answer]:
    """One process of each rank: the one with weights, of two the later owner's, else one that loads, else a spare."""
    return [max(each, key=lambda answer: answer[0].order) for each in answers]
