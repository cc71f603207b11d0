"""Whatever dies and however the pool's line behaves: every request ends once, with an undisturbed run's tokens."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from services.clock import run_in_virtual_time
from services.engine.null import NullEngine
from services.errors import EngineLost, StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult, NewRequest
from services.requests import SamplingParams
from services.scheduling import RequestLevelScheduler, Scheduler
from tests.services.loop_world import SEAT, WORD, World

FIGURES = EngineFigures("m", 4096, 40, 16, 100, "n")


class MortalEngine:
    """A null engine that takes its time, and dies in the iterations of its life that `deaths` names."""

    def __init__(self, seconds: float, deaths: set[int]) -> None:
        self.null = NullEngine(FIGURES)
        self._seconds, self._deaths = seconds, deaths
        self._count = 0

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        return asyncio.ensure_future(self._run(iteration))

    async def _run(self, iteration: Iteration) -> IterationResult:
        await asyncio.sleep(self._seconds)
        self._count += 1
        if self._count in self._deaths:
            raise EngineLost(f"in its iteration {self._count}")
        return self.null.run(iteration)


def undisturbed(id: str, prompt: int, new: int) -> list[int]:
    """The tokens of a request that runs alone."""
    engine, tokens = NullEngine(FIGURES), []
    engine.reset("e")
    fresh = [NewRequest(id, [WORD] * prompt, prompt, SamplingParams(new))]
    for step in range(new):
        iteration = Iteration("e", step, {id: 1 if step else prompt}, [] if step else fresh)
        tokens.append(engine.run(iteration).tokens[id])
    return tokens


@dataclass(frozen=True)
class Story:
    kind: type[Scheduler]
    requests: list[tuple[float, int, int, float | None]]  # submitted at, prompt, new tokens, cancelled at
    outages: list[tuple[float, float, Literal["request", "reply"]]]  # from, seconds
    deaths: set[int]
    usurper: float | None  # when somebody else takes the seat
    exchange: float
    iteration: float


moments = st.floats(0, 8)
stories = st.builds(
    Story,
    st.sampled_from([Scheduler, RequestLevelScheduler]),
    st.lists(
        st.tuples(moments, st.integers(1, 200), st.integers(1, 30), st.none() | moments),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.tuples(moments, st.floats(0.01, 4), st.sampled_from(["request", "reply"])), max_size=3),
    st.sets(st.integers(1, 60), max_size=4),
    st.none() | moments,
    st.floats(0.001, 0.3),
    st.floats(0.01, 0.4),
)


class Stage:
    """A world with a story happening in it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = World(story.kind, batch=3, lease=2.0, exchange=story.exchange)
        self.world.figures = FIGURES
        self.engine = MortalEngine(story.iteration, story.deaths)
        self.world.engine = self.engine  # type: ignore[assignment]
        self.over = False

    async def owner(self) -> None:
        """Serves, and takes the seat again when the engine or the seat is lost."""
        dead = None
        while not self.over:
            try:
                loop = await self.world.take_seat(dead_epoch=dead)
            except AssertionError:  # it is another's
                await asyncio.sleep(0.1)
                continue
            dead = self.world.epoch
            self.engine.null.reset(dead)
            with contextlib.suppress(EngineLost, StaleEpoch):
                await loop.run()

    async def client(self, request: str, at: float, prompt: int, new: int, cancel: float | None) -> str:
        await asyncio.sleep(at)
        id = await self.world.submit(request, prompt, new)
        if cancel is not None:
            await asyncio.sleep(max(0.0, cancel - at))
            await self.world.pool.cancel(request)
        return id

    async def outage(self, at: float, seconds: float, kind: str) -> None:
        await asyncio.sleep(at)
        self.world.line.down = kind
        await asyncio.sleep(seconds)
        self.world.line.down = ""

    async def usurper(self, at: float) -> None:
        """Takes the seat from its living owner, and gives it back."""
        await asyncio.sleep(at)
        grant = await self.world.pool.acquire(SEAT, "usurper", 2.0, dead_epoch=self.world.epoch)
        if grant.granted:
            await asyncio.sleep(0.5)
            await self.world.pool.release(SEAT, grant.epoch)

    async def play(self) -> None:
        owning = asyncio.create_task(self.owner())
        await asyncio.sleep(0)
        events = [self.outage(*outage) for outage in self.story.outages]
        if self.story.usurper is not None:
            events.append(self.usurper(self.story.usurper))
        ids = await asyncio.gather(*(self.client(f"r{i}", *r) for i, r in enumerate(self.story.requests)))
        await asyncio.gather(*events)
        await self.world.ended(*ids)
        self.over = True
        self.world.loop.stop()
        await owning
        for id, (_, prompt, new, cancel) in zip(ids, self.story.requests, strict=True):
            await self.check(id, prompt, new, cancelled=cancel is not None)

    async def check(self, id: str, prompt: int, new: int, cancelled: bool) -> None:
        tokens, reason = await self.world.read(id)
        assert tokens == undisturbed(id, prompt, new)[: len(tokens)]
        if len(tokens) < new:
            assert cancelled
            assert reason == "cancelled"
        else:
            assert reason == "length" or cancelled


@settings(max_examples=60, deadline=None)
@given(stories)
def test_nothing_is_lost_or_doubled(story: Story) -> None:
    async def main() -> None:
        await Stage(story).play()

    run_in_virtual_time(main())
