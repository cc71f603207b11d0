"""Every combination of knobs on random workloads: the tokens are the same, and no bound is exceeded."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from services.messages import Claim, EngineFigures, Iteration, IterationResult
from services.requests import BATCH_CLASS, FinishReason, SamplingParams
from services.scheduling import Knobs, Scheduler
from services.scheduling.drafting import Drafting
from services.scheduling.last_class import LULL
from tests.services.scheduling.engine_model import EOS, VOCABULARY, EngineModel, expected

BLOCKS, SIZE, LENGTH = 14, 4, 40

knobs = st.builds(
    Knobs,
    max_batch_size=st.integers(1, 4),
    token_budget=st.none() | st.integers(4, 16),
    tbt_target=st.none() | st.sampled_from([0.005, 0.02, 0.05]),
    stretch_target=st.booleans(),
    admission=st.sampled_from(["reserve", "on_demand"]),
    order=st.sampled_from(["fcfs", "priority"]),
    batches_in_flight=st.integers(1, 3),
    num_speculative_tokens=st.sampled_from([0, 1, 2, 8]),
    prefix_caching=st.booleans(),
    share_prefixes=st.booleans(),
) | st.builds(
    Knobs,
    max_batch_size=st.integers(1, 4),
    token_budget=st.none() | st.integers(4, 16),
    admission=st.sampled_from(["reserve", "on_demand"]),
    order=st.sampled_from(["fcfs", "priority"]),
    lookahead=st.just(1),
    prefix_caching=st.booleans(),
)


@dataclass(frozen=True)
class Arrival:
    prefix: int  # one of few texts with which prompts begin
    length: int  # tokens of the prefix
    own: int  # tokens after the prefix
    new: int
    priority: int
    ttft: float
    tenant: str
    strikes: int
    drafts: float  # the share of guesses at its tokens that are right
    scored: bool  # it asks for log probabilities of its prompt


arrivals = st.builds(
    Arrival,
    prefix=st.integers(0, 1),
    length=st.integers(0, 20),
    own=st.integers(0, 3),
    new=st.integers(1, 14),
    priority=st.sampled_from([0, 0, 0, -1, 1, BATCH_CLASS, BATCH_CLASS]),
    ttft=st.sampled_from([0.0, 0.05, 1.0]),
    tenant=st.sampled_from("ab"),
    strikes=st.sampled_from([0] * 9 + [2]),
    drafts=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    scored=st.booleans(),
)


@dataclass(frozen=True)
class Turn:
    """The events around one `select`, as choices among the current requests."""

    arrivals: list[Arrival] = field(default_factory=list)
    cancel: int | None = None
    drop: int | None = None  # and claim it again
    fail: int | None = None
    keep: int = 0  # iterations that stay in flight
    crash: str = ""  # the scheduler or the engine dies
    ran: int = 0  # iterations in flight that the engine runs after the scheduler's death


some = st.sampled_from([None] * 8 + [0, 1, 2, 3])
turns = st.lists(
    st.builds(
        Turn,
        st.lists(arrivals, max_size=3),
        cancel=some,
        drop=some,
        fail=some,
        keep=st.integers(0, 3),
        crash=st.sampled_from([""] * 12 + ["engine", "scheduler", "scheduler"]),
        ran=st.integers(0, 3),
    ),
    max_size=20,
)


class World:
    """A scheduler, a model of an engine that answers in order, and the commits that the pool got."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.now = 0.0
        self.claims: dict[str, Claim] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.preemptions, self.left = 0.0, 0
        self.again: set[str] = (
            set()
        )  # requests that were dropped and claimed again, which iterations in flight may contain
        self.engine = EngineModel(BLOCKS, SIZE, ["", "a", "b"])
        self.writers: dict[int, str] = {}  # the request that writes a block, as of the last selected iteration
        self.written: dict[int, str] = {}  # as of the last iteration that the engine ran
        self.start({})

    def start(self, cached_blocks: Mapping[int, bytes]) -> None:
        self.scheduler = Scheduler(
            epoch="e",
            figures=EngineFigures("m", LENGTH, BLOCKS, SIZE, 100, "n"),
            knobs=self.knobs,
            eos_token_ids=[EOS],
            now=lambda: self.now,
            cached_blocks=cached_blocks,
        )
        self.flights: deque[tuple[Iteration, list[str]]] = deque()

    @property
    def open(self) -> list[str]:
        return [id for id in self.claims if id not in self.ends]

    def arrive(self, a: Arrival) -> None:
        id = f"r{len(self.claims)}"
        text = [5 + a.prefix, *range(10, 30)]
        prompt = text[: a.length] + [40 + len(self.claims)] * a.own or [7]
        rank = self.now + (60 * a.priority + a.ttft if self.knobs.order == "priority" else 0) + 1e-6 * len(self.claims)
        if a.priority == BATCH_CLASS:
            rank += 3e9
        sampling = SamplingParams(a.new, prompt_logprobs=0 if a.scored else None)
        self.claims[id] = Claim(id, rank, prompt, [], sampling, a.strikes, a.priority, a.ttft, 0, a.tenant)
        self.outputs[id] = []
        self.engine.salts.append(id)
        GUESSED[tuple(prompt)] = a.drafts
        self.scheduler.add([self.claims[id]])

    def claim_again(self, ids: list[str]) -> None:
        again = [self.claims[id] for id in ids]
        self.scheduler.add([replace(c, output=list(self.outputs[c.id])) for c in again])

    def turn(self, turn: Turn) -> None:
        for arrival in turn.arrivals:
            self.arrive(arrival)
        if turn.crash:  # tokens that were not committed are lost
            self.crash(turn)
        if turn.cancel is not None:
            self.scheduler.cancel(self.open[turn.cancel : turn.cancel + 1])
        if turn.drop is not None and (ids := self.open[turn.drop : turn.drop + 1]):
            self.commit()
            ids = [id for id in ids if id not in self.ends]
            self.again.update(ids)
            self.left += 1
            self.scheduler.drop(ids)
            self.claim_again(ids)
        while iteration := self.scheduler.select():
            self.check(iteration)
            batch = list(iteration.scheduled)
            self.flights.append((iteration, [] if turn.fail is None else batch[turn.fail : turn.fail + 1]))
        self.check_room()
        while len(self.flights) > turn.keep:
            self.land()
        self.commit()
        self.scheduler.blocks.check()
        self.check_preemptions()
        self.now += 0.01

    def crash(self, turn: Turn) -> None:
        self.left += 1
        if turn.crash == "engine":
            self.engine = EngineModel(BLOCKS, SIZE, self.engine.salts)
        while self.flights and turn.ran > 0 and turn.crash == "scheduler":
            turn = replace(turn, ran=turn.ran - 1)
            self.run(*self.flights.popleft())
        self.writers = self.written.copy()
        self.engine.reset()
        names = self.engine.names.as_dict()
        self.start(names)
        self.scheduler.blocks.check()
        self.claim_again(self.open)

    def land(self) -> None:
        self.scheduler.update(self.run(*self.flights.popleft()))

    def run(self, iteration: Iteration, failed: list[str]) -> IterationResult:
        found = {new.id: new.num_computed_tokens // SIZE for new in iteration.new}
        for id, blocks in iteration.new_blocks.items():
            self.written |= dict.fromkeys(blocks[found.get(id, 0) :], id)
        return self.engine.run(iteration, failed)

    def commit(self) -> None:
        for commit in self.scheduler.take_commits():
            assert commit.id not in self.ends
            assert commit.index == len(self.outputs[commit.id])
            self.outputs[commit.id] += commit.tokens
            if commit.end:
                self.ends[commit.id] = commit.end.reason
                assert commit.end.cached <= len(self.claims[commit.id].prompt)

    def check(self, iteration: Iteration) -> None:
        knobs, batch = self.knobs, iteration.scheduled
        assert 0 < len(batch) <= knobs.max_batch_size
        assert all(count > 0 for count in batch.values())
        assert len(self.flights) < knobs.depth
        if knobs.token_budget:
            assert iteration.num_tokens <= knobs.token_budget
        for id, draft in iteration.drafts.items():
            assert 0 < len(draft) <= knobs.num_speculative_tokens
            assert batch[id] == 1
        if not knobs.lookahead:
            assert not any(id in other.scheduled for other, _ in self.flights for id in batch if id not in self.again)
        self.check_tenants(iteration)
        if any(map(self.is_line, batch)):
            assert all(map(self.is_line, self.scheduler._entries)), "a line runs while others are here"
        if any(self.claims[id].strikes and not self.outputs[id] for id in batch):
            assert len(batch) == 1

    def is_line(self, id: str) -> bool:
        return self.claims[id].priority == BATCH_CLASS

    def check_tenants(self, iteration: Iteration) -> None:
        found = {new.id: new.num_computed_tokens // SIZE for new in iteration.new}
        for id, blocks in iteration.new_blocks.items():
            tenant, shared = self.claims[id].tenant, found.get(id, 0)
            writers = [self.writers[block] for block in blocks[:shared]]
            if not self.knobs.prefix_caching:
                assert set(writers) <= {id}
            elif not self.knobs.share_prefixes:
                assert all(self.claims[writer].tenant == tenant for writer in writers)
            self.writers |= dict.fromkeys(blocks[shared:], id)

    def check_preemptions(self) -> None:
        """After blocks ran out, no request starts until one has ended, so each running request is preempted at most
        once between two ends. With priorities, requests also give way to urgent ones, as often as these start before
        their first token. Lines of batches give way to all others.
        """
        most = self.knobs.max_batch_size * self.knobs.batches_in_flight
        urgent = len(self.claims) if self.knobs.order == "priority" or any(map(self.is_line, self.claims)) else 0
        self.preemptions += self.scheduler.take_counters().get("vllm:num_preemptions", 0)
        assert self.preemptions <= most * (len(self.ends) + self.left + 1 + urgent)

    def check_room(self) -> None:
        room = self.scheduler.room()
        assert room.whole == (self.knobs.admission == "reserve")
        assert room.requests <= self.knobs.max_batch_size * self.knobs.batches_in_flight
        assert room.blocks <= BLOCKS

    def run_dry(self) -> None:
        work = sum(len(c.prompt) + c.sampling.max_new_tokens for c in self.claims.values())
        for _ in range(20 * work + 10):
            if not self.open:
                break
            self.now += LULL  # lines of batches may run
            self.turn(Turn())
        while self.flights:
            self.land()
        assert not self.open, "a request waits for ever"
        assert self.scheduler.blocks.held == 0
        self.scheduler.blocks.check()

    def check_outputs(self) -> None:
        for id, claim in self.claims.items():
            most = min(claim.sampling.max_new_tokens, LENGTH - len(claim.prompt))
            whole = expected(claim.prompt, most)
            if self.ends[id] in (FinishReason.STOP, FinishReason.LENGTH):
                assert self.outputs[id] == whole
            else:
                assert self.outputs[id] == whole[: len(self.outputs[id])]


GUESSED: dict[tuple[int, ...], float] = {}  # by prompt: the share of guesses that are right


def guess(drafting: Drafting, most: int) -> list[int]:
    """Drafts of which a given share is right, in place of those from the text."""
    tokens = drafting._text._prompt + drafting._output
    drawn = random.Random(hash(tuple(tokens)))
    guesses = expected(tokens, most)
    share = GUESSED[tuple(drafting._text._prompt)]
    return [token if drawn.random() < share else drawn.randrange(VOCABULARY) for token in guesses]


@settings(max_examples=200)
@given(knobs, turns)
def test_any_knobs_give_the_same_tokens_within_their_bounds(knobs: Knobs, workload: list[Turn]) -> None:
    GUESSED.clear()
    world = World(knobs)
    with patch.object(Drafting, "find", guess):
        for turn in workload:
            world.turn(turn)
        world.run_dry()
    world.check_outputs()
