"""Properties of every workload: bounds, blocks, the order of service, and one end for each request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from services.messages import Claim, Iteration
from services.scheduling import RequestLevelScheduler, Scheduler
from tests.services.scheduling.scripted import EOS, WORD, Script, claim, scripted

BLOCKS, BATCH, LENGTH = 12, 3, 40


@dataclass(frozen=True)
class Turn:
    """The events before and during one iteration, as choices among the current requests."""

    arrivals: list[tuple[int, int]]  # prompt and new tokens
    cancel: int | None
    cancel_in_flight: bool
    eos: int | None
    fail: int | None


some = st.none() | st.integers(0, 5)
turns = st.lists(
    st.builds(
        Turn,
        st.lists(st.tuples(st.integers(1, 8) | st.integers(1, LENGTH), st.integers(1, 20)), max_size=3),
        cancel=some,
        cancel_in_flight=st.booleans(),
        eos=some,
        fail=some,
    ),
    max_size=25,
)


class Model:
    """Runs a scheduler through turns and then until all requests have ended, with checks after each step."""

    def __init__(self, kind: type[Scheduler]) -> None:
        self.script: Script = scripted(kind, blocks=BLOCKS, batch=BATCH, length=LENGTH)
        self.claims: dict[str, Claim] = {}
        self.tables: dict[str, list[int]] = {}  # the engine's block tables
        self.ends: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    def open(self) -> list[str]:
        return [id for id in self.claims if not self.ends[id]]

    def turn(self, turn: Turn) -> None:
        scheduler = self.script.scheduler
        for prompt, new in turn.arrivals:
            id = f"r{len(self.claims)}"
            self.claims[id] = claim(id, float(len(self.claims)), prompt, new)
            scheduler.add([self.claims[id]])
        if not turn.cancel_in_flight:
            scheduler.cancel(self.pick(turn.cancel))
        iteration = self.script.select()
        if iteration is None:
            self.take()
            return
        self.check_iteration(iteration)
        if turn.cancel_in_flight:
            scheduler.cancel(self.pick(turn.cancel))
        batch = list(iteration.scheduled)
        eos = [] if turn.eos is None else batch[turn.eos : turn.eos + 1]
        failed = [] if turn.fail is None else batch[turn.fail : turn.fail + 1]
        self.script.finish(dict.fromkeys(eos, EOS), dict.fromkeys(failed, "no"))
        self.take()
        self.check_order_of_service()

    def pick(self, place: int | None) -> list[str]:
        return [] if place is None else self.open()[place : place + 1]

    def take(self) -> None:
        """Take the commits. Tokens have consecutive indices, and nothing follows the end."""
        for commit in [*self.script.commits, *self.script.scheduler.take_commits()]:
            assert not self.ends[commit.id]
            assert commit.index == self.tokens[commit.id]
            self.tokens[commit.id] += len(commit.tokens)
            self.ends[commit.id] += commit.end is not None
        self.script.commits.clear()

    def check_iteration(self, iteration: Iteration) -> None:
        assert 0 < len(iteration.scheduled) <= BATCH
        for id in iteration.released:
            del self.tables[id]  # raises KeyError if the engine does not know it
        assert list(iteration.scheduled) == [id for id in self.claims if id in iteration.scheduled]
        assert {new.id for new in iteration.new} == set(iteration.new_blocks) <= set(iteration.scheduled)
        self.tables |= iteration.new_blocks
        placed = [block for table in self.tables.values() for block in table]
        assert len(placed) == len(set(placed)) <= BLOCKS
        assert set(placed) <= set(range(BLOCKS))
        for id in iteration.scheduled:
            assert not self.ends[id]
            request = self.claims[id]
            longest = min(len(request.prompt) + request.sampling.max_new_tokens, LENGTH)
            assert 4 * len(self.tables[id]) >= longest

    def check_order_of_service(self) -> None:
        """An unfinished request has run in at least as many iterations as any later one."""
        ran = [self.script.ran.get(id, 0) for id in self.open()]
        assert ran == sorted(ran, reverse=True)

    def run_dry(self) -> None:
        nothing = Turn([], None, False, None, None)
        for _ in range(20 * len(self.claims) + 1):
            if not self.open():
                break
            self.turn(nothing)
        assert all(self.ends[id] == 1 for id in self.claims)
        assert self.script.scheduler.blocks.held == 0
        assert self.script.scheduler.room().requests == BATCH


@settings(max_examples=150)
@given(turns)
def test_iteration_level(workload: list[Turn]) -> None:
    model = Model(Scheduler)
    for turn in workload:
        model.turn(turn)
    model.run_dry()


@settings(max_examples=50)
@given(turns)
def test_request_level(workload: list[Turn]) -> None:
    model = Model(RequestLevelScheduler)
    for turn in workload:
        model.turn(turn)
    model.run_dry()


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 50), st.integers(0, 19)),
        min_size=1,
        max_size=12,
    )
)
def test_no_deadlock_with_any_order_of_arrival_and_any_previous_output(
    requests: list[tuple[int, int, int, int]],
) -> None:
    """One claim per step, with any time of arrival and some tokens of an earlier owner: all requests end."""
    s = scripted(blocks=BLOCKS, batch=BATCH, length=LENGTH)
    for number, (prompt, new, arrival, done) in enumerate(requests):
        s.scheduler.add([claim(f"r{number}", arrival, prompt, new, output=(WORD,) * min(done, new - 1))])
        if s.select():
            s.finish()
    while s.select():
        s.finish()
    ended = {commit.id for commit in [*s.commits, *s.scheduler.take_commits()] if commit.end}
    assert len(ended) == len(requests)
