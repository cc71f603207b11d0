"""Scenarios: requests, and the faults of engine, seat and pool while they run."""

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
from tests.services.loop.world import SEAT, WORD, Backup, World

FIGURES = EngineFigures("m", 4096, 40, 16, 100, "n")
GATEWAY = "g"


@dataclass(frozen=True)
class PlannedRequest:
    """A request of a scenario."""

    at: float
    prompt: int
    new: int
    cancel: float | None = None
    logprobs: bool = False
    prompt_logprobs: int | None = None  # only with `logprobs`
    kills: int | None = None  # the engine dies when it computes the token after this many
    poison: str = ""  # a key of `poison.SITES`: the function that raises when it handles this request


@dataclass(frozen=True)
class Crash:
    """The pool's server dies at `at`, is away for `away` seconds, and comes back with its state from `age` seconds
    before. `noticed`: pending calls fail; otherwise the crash can be seen only from the replies of the pool afterwards.
    """

    at: float
    age: float
    away: float
    noticed: bool


@dataclass(frozen=True)
class Scenario:
    kind: type[Scheduler]
    plans: list[PlannedRequest]
    outages: list[tuple[float, float, Literal["request", "reply"]]] = field(default_factory=list)  # start, seconds
    crashes: list[Crash] = field(default_factory=list)
    deaths: set[int] = field(default_factory=set)  # iterations of the whole scenario in which the engine dies
    usurper: float | None = None  # when another owner takes the seat
    exchange: float = 0.001
    iteration: float = 0.1
    knobs: Knobs = field(default_factory=lambda: Knobs(3))


class MortalEngine:
    """A null engine that takes time for each iteration and dies as the scenario says."""

    def __init__(self, seconds: float, deaths: set[int], kills: dict[str, int]) -> None:
        self.null = NullEngine(FIGURES)
        self._seconds, self._deaths, self._kills = seconds, deaths, kills
        self._count = 0
        self._made: dict[str, int] = {}  # the number of output tokens that the engine knows
        self._lock = asyncio.Lock()
        self._dead = False

    def reset(self, epoch: str) -> None:
        self.null.reset(epoch)
        self._made.clear()
        self._lock = asyncio.Lock()  # iterations that were sent before belong to the last owner
        self._dead = False

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        return asyncio.ensure_future(self._in_turn(iteration, self._lock))

    async def _in_turn(self, iteration: Iteration, turn: asyncio.Lock) -> IterationResult:
        async with turn:
            await asyncio.sleep(self._seconds)
            if turn is not self._lock:
                raise StaleEpoch("the engine has another owner")
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
            result.logprobs[id] = logprobs_of(token, said.prompt if said else None)
        return result


def logprobs_of(token: int, prompt: PromptLogprobs | None = None) -> Logprobs:
    return Logprobs(-token / 7, [(token, -token / 7)], prompt)


def reference_output(id: str, prompt: int, new: int) -> list[int]:
    """Return the tokens of a request that runs alone."""
    engine, tokens = NullEngine(FIGURES), []
    engine.reset("e")
    fresh = [NewRequest(id, [WORD] * prompt, prompt, SamplingParams(new))]
    for step in range(new):
        iteration = Iteration("e", step, {id: 1 if step else prompt}, [] if step else fresh)
        tokens.append(engine.run(iteration).tokens[id])
    return tokens


class Client:
    """One request and its follower, which does what a gateway does: it reads, and submits again what the pool has
    lost.
    """

    def __init__(self, world: World, request: str, plan: PlannedRequest) -> None:
        self.id, self.plan, self.end = f"{request}/0", plan, None
        self.tokens: list[int] = []
        self._world, self._request = world, request
        asked = plan.prompt_logprobs if plan.logprobs else None
        self._sampling = SamplingParams(plan.new, logprobs=0 if plan.logprobs else None, prompt_logprobs=asked)

    def expected_logprobs(self, tokens: list[int]) -> list[Logprobs]:
        """Return the log probabilities of the output. The first token has those of the prompt."""
        asked, scored = self._sampling.prompt_logprobs, self.plan.prompt - 1
        prompt = None
        if asked is not None:
            most = scored * asked
            prompt = PromptLogprobs([LIKELY] * scored, [1] * scored, [0] * most, [LIKELY] * most)
        return [logprobs_of(token, None if i else prompt) for i, token in enumerate(tokens)]

    async def submit(self) -> None:
        logprobs = self.expected_logprobs(self.tokens) if self.plan.logprobs else None
        sequence = NewSequence(self.id, [WORD] * self.plan.prompt, self._sampling, list(self.tokens), logprobs)
        await self._world.pool.submit(Submission(self._request, GATEWAY, [sequence], resumable=True))

    async def follow(self) -> None:
        """Follow the request to its end. Tokens must not change."""
        await asyncio.sleep(self.plan.at)
        await self.submit()
        while self.end is None:
            await asyncio.sleep(0.05)
            if self._world.connection.down != "request":
                await self._look()

    async def _look(self) -> None:
        if self.plan.cancel is not None and asyncio.get_running_loop().time() >= self.plan.cancel:
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
        if self.plan.logprobs:
            assert (snapshot.logprobs or []) == self.expected_logprobs(snapshot.tokens)
        return snapshot.end

    def check(self) -> None:
        assert self.end is not None
        plan, reason = self.plan, self.end.reason
        expected = reference_output(self.id, plan.prompt, plan.new)
        if plan.poison and reason is FinishReason.ERROR:
            assert self.tokens == expected[: len(self.tokens)]
        elif plan.kills is not None and plan.kills < plan.new:
            assert (reason, self.tokens) == (FinishReason.ERROR, expected[: plan.kills])
        elif plan.cancel is not None and reason is FinishReason.CANCELLED:
            assert self.tokens == expected[: len(self.tokens)]
        else:
            assert (reason, self.tokens) == (FinishReason.LENGTH, expected)


class ScenarioRun:
    """Runs a scenario, and checks that each request ends once, with the tokens of an undisturbed run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(scenario.kind, lease=2.0, exchange=scenario.exchange, knobs=scenario.knobs)
        self.world.figures = FIGURES
        self.clients = [Client(self.world, f"r{i}", plan) for i, plan in enumerate(scenario.plans)]
        kills = {client.id: client.plan.kills for client in self.clients if client.plan.kills is not None}
        self.engine = MortalEngine(scenario.iteration, scenario.deaths, kills)
        self.world.engine = self.engine  # type: ignore[assignment]
        self.over = False

    async def owner(self) -> None:
        """Serve, and take the seat again after the engine or the seat was lost, as the actor does."""
        dead = None
        while not self.over:
            loop = await self.world.try_seat(dead_epoch=dead) if not self.world.connection.down else None
            if loop is None:
                await asyncio.sleep(0.1)
                continue
            dead = self.world.epoch
            self.engine.reset(dead)
            try:
                await loop.run()
            except EngineLost:
                if not self.world.connection.down:
                    await self.world.pool.release(SEAT, dead, struck=loop.in_flight)
            except SchedulerFault as fault:
                if not self.world.connection.down:
                    await self.world.pool.release(SEAT, dead, struck=fault.requests)
            except StaleEpoch:
                pass

    async def outage(self, at: float, seconds: float, kind: str) -> None:
        await asyncio.sleep(at)
        self.world.connection.down = kind
        await asyncio.sleep(seconds)
        self.world.connection.down = ""

    async def crash(self, crash: Crash) -> None:
        await asyncio.sleep(max(0.0, crash.at - crash.age))
        backup = Backup(self.world.pool)
        await asyncio.sleep(min(crash.at, crash.age))
        if crash.noticed:
            self.world.connection.down = "request"
            self.world.connection.cut()
            await asyncio.sleep(crash.away)
            self.world.connection.down = ""
        backup.restore()

    async def usurper(self, at: float) -> None:
        """Take the seat from its living owner and give it back."""
        await asyncio.sleep(at)
        grant = await self.world.pool.acquire(SEAT, "usurper", 2.0, dead_epoch=self.world.epoch)
        if grant.granted:
            await asyncio.sleep(0.5)
            await self.world.pool.release(SEAT, grant.epoch)

    async def play(self) -> None:
        owning = asyncio.create_task(self.owner())
        await asyncio.sleep(0)
        events = [self.outage(*outage) for outage in self.scenario.outages]
        events += [self.crash(crash) for crash in self.scenario.crashes]
        if self.scenario.usurper is not None:
            events.append(self.usurper(self.scenario.usurper))
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
            await client.read()  # what the pool still has is unchanged
            client.check()

    def hung(self, playing: asyncio.Future[object]) -> None:
        playing.cancel()
        raise AssertionError(f"did not end: {[client.id for client in self.clients if client.end is None]}")

    async def quiet(self) -> None:
        """Wait until the pool is empty. If it has lost the end of a request, that request runs to its end again."""
        with contextlib.suppress(asyncio.TimeoutError):
            for _ in range(2000):
                overview = await self.world.pool.overview()
                if not overview.waiting and not overview.running:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(f"still there: {overview}")
