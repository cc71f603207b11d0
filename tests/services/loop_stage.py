"""A world with a story in it: requests, and what befalls engine, seat and pool meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Literal

from services.engine.null import LIKELY, NullEngine
from services.errors import EngineLost, SchedulerFault, StaleEpoch
from services.messages import (
    End,
    EngineFigures,
    Iteration,
    IterationResult,
    Logprobs,
    NewRequest,
    NewSequence,
    PromptLogprobs,
    Submission,
)
from services.requests import FinishReason, SamplingParams
from services.scheduling import Knobs, Scheduler
from tests.services.loop_world import SEAT, WORD, Backup, World

FIGURES = EngineFigures("m", 4096, 40, 16, 100, "n")
GATEWAY = "g"


@dataclass(frozen=True)
class Order:
    """A request of the story."""

    at: float
    prompt: int
    new: int
    cancel: float | None = None
    logprobs: bool = False
    prompt_logprobs: int | None = None  # only with `logprobs`
    kills: int | None = None  # the engine dies when it is to compute what follows so many tokens of it
    poison: str = ""  # the function, a key of `poison.SITES`, that raises whenever it handles this request


@dataclass(frozen=True)
class Crash:
    """The pool's server dies at `at`, is away for `away` seconds and comes back with its state `age` seconds before.
    `noticed`: calls under way break; else nobody sees it but by what the pool says afterwards."""

    at: float
    age: float
    away: float
    noticed: bool


@dataclass(frozen=True)
class Story:
    kind: type[Scheduler]
    orders: list[Order]
    outages: list[tuple[float, float, Literal["request", "reply"]]] = field(default_factory=list)  # from, seconds
    crashes: list[Crash] = field(default_factory=list)
    deaths: set[int] = field(default_factory=set)  # iterations of the engine's life in which it dies
    usurper: float | None = None  # when somebody else takes the seat
    exchange: float = 0.001
    iteration: float = 0.1
    knobs: Knobs = field(default_factory=lambda: Knobs(3))


class MortalEngine:
    """A null engine that takes its time, one iteration after the other, and dies as the story says."""

    def __init__(self, seconds: float, deaths: set[int], kills: dict[str, int]) -> None:
        self.null = NullEngine(FIGURES)
        self._seconds, self._deaths, self._kills = seconds, deaths, kills
        self._count = 0
        self._made: dict[str, int] = {}  # output tokens that the engine knows
        self._turn = asyncio.Lock()
        self._dead = False

    def reset(self, epoch: str) -> None:
        self.null.reset(epoch)
        self._made.clear()
        self._turn = asyncio.Lock()  # whatever was sent before is nobody's
        self._dead = False

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        return asyncio.ensure_future(self._in_turn(iteration, self._turn))

    async def _in_turn(self, iteration: Iteration, turn: asyncio.Lock) -> IterationResult:
        async with turn:
            await asyncio.sleep(self._seconds)
            if turn is not self._turn:
                raise StaleEpoch("another's by now")
            if self._dead:
                raise EngineLost("it was dead")
            return self._run(iteration)

    def _run(self, iteration: Iteration) -> IterationResult:
        self._count += 1
        for new in iteration.new:
            self._made[new.id] = len(new.token_ids) - new.num_prompt_tokens
        killer = next((id for id in iteration.scheduled if self._made[id] >= self._kills.get(id, 1 << 60)), None)
        self._dead = bool(killer) or self._count in self._deaths
        if self._dead:
            raise EngineLost(f"in its iteration {self._count}")
        result = self.null.run(iteration)
        for id in result.tokens:
            self._made[id] += 1
        for id, token in result.tokens.items():
            said = result.logprobs.get(id)
            result.logprobs[id] = surprise(token, said.prompt if said else None)
        return result


def surprise(token: int, prompt: PromptLogprobs | None = None) -> Logprobs:
    return Logprobs(-token / 7, [(token, -token / 7)], prompt)


def undisturbed(id: str, prompt: int, new: int) -> list[int]:
    """The tokens of a request that runs alone."""
    engine, tokens = NullEngine(FIGURES), []
    engine.reset("e")
    fresh = [NewRequest(id, [WORD] * prompt, prompt, SamplingParams(new))]
    for step in range(new):
        iteration = Iteration("e", step, {id: 1 if step else prompt}, [] if step else fresh)
        tokens.append(engine.run(iteration).tokens[id])
    return tokens


class Client:
    """One request and its follower, who does what a gateway does: reads, and puts back what the pool has lost."""

    def __init__(self, world: World, request: str, order: Order) -> None:
        self.id, self.order, self.end = f"{request}/0", order, None
        self.tokens: list[int] = []
        self._world, self._request = world, request
        asked = order.prompt_logprobs if order.logprobs else None
        self._sampling = SamplingParams(order.new, logprobs=0 if order.logprobs else None, prompt_logprobs=asked)

    def surprises(self, tokens: list[int]) -> list[Logprobs]:
        """The log probabilities of the output: with the first token come those of the prompt, with no other."""
        asked, scored = self._sampling.prompt_logprobs, self.order.prompt - 1
        prompt = None
        if asked is not None:
            most = scored * asked
            prompt = PromptLogprobs([LIKELY] * scored, [1] * scored, [0] * most, [LIKELY] * most)
        return [surprise(token, None if i else prompt) for i, token in enumerate(tokens)]

    async def submit(self) -> None:
        logprobs = self.surprises(self.tokens) if self.order.logprobs else None
        sequence = NewSequence(self.id, [WORD] * self.order.prompt, self._sampling, list(self.tokens), logprobs)
        await self._world.pool.submit(Submission(self._request, GATEWAY, [sequence], resumable=True))

    async def follow(self) -> None:
        """Until the end, which no other may follow, of tokens of which none may change."""
        await asyncio.sleep(self.order.at)
        await self.submit()
        while self.end is None:
            await asyncio.sleep(0.05)
            if self._world.line.down != "request":
                await self._look()

    async def _look(self) -> None:
        if self.order.cancel is not None and asyncio.get_running_loop().time() >= self.order.cancel:
            await self._world.pool.cancel(self._request)
        self.end = await self.read()
        if self.end is None and self.unknown:
            await self.submit()

    async def read(self) -> End | None:
        (snapshot,) = await self._world.pool.listen(GATEWAY, {self.id: 0})
        self.unknown = not snapshot.known
        both = min(len(snapshot.tokens), len(self.tokens))
        assert snapshot.tokens[:both] == self.tokens[:both]
        self.tokens += snapshot.tokens[both:]
        if self.order.logprobs:
            assert (snapshot.logprobs or []) == self.surprises(snapshot.tokens)
        return snapshot.end

    def check(self) -> None:
        assert self.end is not None
        order, reason = self.order, self.end.reason
        expected = undisturbed(self.id, order.prompt, order.new)
        if order.poison and reason is FinishReason.ERROR:
            assert self.tokens == expected[: len(self.tokens)]
        elif order.kills is not None and order.kills < order.new:
            assert (reason, self.tokens) == (FinishReason.ERROR, expected[: order.kills])
        elif order.cancel is not None and reason is FinishReason.CANCELLED:
            assert self.tokens == expected[: len(self.tokens)]
        else:
            assert (reason, self.tokens) == (FinishReason.LENGTH, expected)


class Stage:
    """Plays a story. Afterwards each request has ended once, with an undisturbed run's tokens."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = World(story.kind, lease=2.0, exchange=story.exchange, knobs=story.knobs)
        self.world.figures = FIGURES
        self.clients = [Client(self.world, f"r{i}", order) for i, order in enumerate(story.orders)]
        kills = {client.id: client.order.kills for client in self.clients if client.order.kills is not None}
        self.engine = MortalEngine(story.iteration, story.deaths, kills)
        self.world.engine = self.engine  # type: ignore[assignment]
        self.over = False

    async def owner(self) -> None:
        """Serves, and takes the seat again when the engine or the seat is lost; what the actor does."""
        dead = None
        while not self.over:
            loop = await self.world.try_seat(dead_epoch=dead) if not self.world.line.down else None
            if loop is None:
                await asyncio.sleep(0.1)
                continue
            dead = self.world.epoch
            self.engine.reset(dead)
            try:
                await loop.run()
            except EngineLost:
                if not self.world.line.down:
                    await self.world.pool.release(SEAT, dead, struck=loop.in_flight)
            except SchedulerFault as fault:
                if not self.world.line.down:
                    await self.world.pool.release(SEAT, dead, struck=fault.requests)
            except StaleEpoch:
                pass

    async def outage(self, at: float, seconds: float, kind: str) -> None:
        await asyncio.sleep(at)
        self.world.line.down = kind
        await asyncio.sleep(seconds)
        self.world.line.down = ""

    async def crash(self, crash: Crash) -> None:
        await asyncio.sleep(max(0.0, crash.at - crash.age))
        backup = Backup(self.world.pool)
        await asyncio.sleep(min(crash.at, crash.age))
        if crash.noticed:
            self.world.line.down = "request"
            self.world.line.cut()
            await asyncio.sleep(crash.away)
            self.world.line.down = ""
        backup.restore()

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
        events += [self.crash(crash) for crash in self.story.crashes]
        if self.story.usurper is not None:
            events.append(self.usurper(self.story.usurper))
        playing = asyncio.gather(*(client.follow() for client in self.clients), *events)
        await asyncio.wait([playing, owning], return_when=asyncio.FIRST_COMPLETED, timeout=600)
        if owning.done():
            owning.result()
        await playing if playing.done() else self.hung(playing)
        await self.quiet()
        self.over = True
        self.world.loop.stop()
        await owning
        for client in self.clients:
            await client.read()  # what is still there, is still the same
            client.check()

    def hung(self, playing: asyncio.Future[object]) -> None:
        playing.cancel()
        raise AssertionError(f"never ended: {[client.id for client in self.clients if client.end is None]}")

    async def quiet(self) -> None:
        """A pool that lost the end of a request runs it to its end again; nothing may be left lying."""
        with contextlib.suppress(asyncio.TimeoutError):
            for _ in range(2000):
                overview = await self.world.pool.overview()
                if not overview.waiting and not overview.running:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(f"still there: {overview}")
