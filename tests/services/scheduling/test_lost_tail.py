"""A pool that has lost tokens gets them again, and requests that belong to another scheduler are dropped."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.messages import Claim, Commit, End, Iteration, IterationResult, Logprobs
from services.requests import FinishReason
from services.scheduling import RequestLevelScheduler, Scheduler
from services.text import TextTables
from tests.services.scheduling.scripted import WORD, claim, scripted

LENGTH = End(FinishReason.LENGTH)
CANCELLED = End(FinishReason.CANCELLED)


def test_tokens_are_resent_from_the_first_that_the_pool_lacks() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, output=(21, 22))])
    for token in (23, 24, 25):
        s.step({"a": token})
    assert s.scheduler.rewind({"a": 1}) == 4  # also tokens from before the claim, which contained them
    assert s.scheduler.take_commits() == [Commit("a", 1, [22, 23, 24, 25])]
    s.step({"a": 26})
    assert s.commits[-1] == Commit("a", 5, [26])


def test_requests_that_ended_with_the_last_commits_are_still_known() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 2)])
    s.step({"a": 11})
    assert s.step({"a": 12}) == [Commit("a", 1, [12], end=LENGTH)]
    assert s.scheduler.held() == ["a"]
    s.scheduler.rewind({"a": 0})
    assert s.scheduler.take_commits() == [Commit("a", 0, [11, 12], end=LENGTH)]
    assert s.scheduler.take_commits() == []  # it was confirmed
    assert s.scheduler.held() == []
    assert s.scheduler.rewind({"a": 0}) == 0


def test_an_end_during_an_exchange_is_committed_with_the_resent_tokens() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step({"a": 11})
    s.scheduler.cancel(["a"])
    s.scheduler.rewind({"a": 0})
    assert s.scheduler.take_commits() == [Commit("a", 0, [11], end=CANCELLED)]


def test_log_probabilities_of_this_owner_are_resent() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9, output=(21,), logprobs=1)])
    s.step({"a": 22})
    s.step({"a": 23})
    s.scheduler.rewind({"a": 1})
    (commit,) = s.scheduler.take_commits()
    assert (commit.index, commit.tokens) == (1, [22, 23])
    assert commit.logprobs is not None
    assert [entry.top for entry in commit.logprobs] == [[(22, -0.5)], [(23, -0.5)]]


def test_log_probabilities_of_an_earlier_owner_are_computed_again() -> None:
    s = scripted(text=TextTables([b"E", b"ND"], frozenset()), blocks=5)
    s.scheduler.add([claim("a", 1, 3, 9, output=(WORD, 0), logprobs=1, stop=("END",))])
    s.step({"a": WORD})
    s.select()
    assert s.scheduler.rewind({"a": 1}) == 2
    assert s.scheduler.blocks.held == 0
    assert s.finish({"a": 1}) == []  # it was in flight when the request was reset, and is sampled again
    iteration = s.select()
    assert iteration is not None
    assert (iteration.released, iteration.scheduled) == (["a"], {"a": 4})
    assert s.finish({"a": 0})[0].index == 1
    (commit,) = s.step({"a": 1})  # the search for the stop string continues at the right token
    assert (commit.index, commit.end) == (2, End(FinishReason.STOP, "END", cut=3))


def test_a_request_that_ended_is_computed_again_if_its_log_probabilities_are_missing() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 2, output=(21,), logprobs=1)])
    s.step({"a": 22})
    assert s.scheduler.blocks.held == 0
    s.scheduler.rewind({"a": 0})
    s.step({"a": 21})
    (commit,) = s.step({"a": 22})
    assert (commit.index, commit.tokens, commit.end) == (1, [22], LENGTH)


@pytest.mark.parametrize("running", [True, False])
def test_a_dropped_request_leaves_nothing_behind(running: bool) -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    if running:
        s.step()
        s.select()
    s.scheduler.drop(["a", "never heard of"])
    assert s.scheduler.blocks.held == 0
    if running:
        assert s.finish() == []
    assert s.scheduler.held() == []
    assert not s.scheduler.has_commits()
    assert s.select() is None


def test_the_end_of_a_dropped_request_is_not_committed() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step()
    s.scheduler.cancel(["a"])
    s.scheduler.drop(["a"])
    assert s.scheduler.held() == [], "nor is a token of the last commit, if the pool lost that"
    assert s.scheduler.take_commits() == []


@pytest.mark.parametrize("told", [True, False])
def test_a_request_that_is_claimed_again_in_flight_starts_again(told: bool) -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step({"a": 11})
    s.select()
    if told:
        s.scheduler.drop(["a"])
    s.scheduler.add([claim("a", 1, 3, 9, output=(11,))])
    assert s.finish({"a": 12}) == []  # sampled for the request before it was claimed again
    iteration = s.select()
    assert iteration is not None
    assert (iteration.released, iteration.scheduled) == (["a"], {"a": 4})
    assert s.finish({"a": 12}) == [Commit("a", 1, [12])]


# --- any workload, any losses ------------------------------------------------------------------------------------


def token(id: str, position: int) -> int:
    return 10 + zlib.crc32(f"{id} {position}".encode()) % 50


class Engine:
    """An engine that checks its messages, and whose tokens depend on request and position only."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}

    def run(self, iteration: Iteration) -> IterationResult:
        for id in iteration.released:
            del self.tokens[id], self.blocks[id]
        for new in iteration.new:
            assert new.id not in self.tokens
            self.tokens[new.id] = list(new.token_ids)
        self.blocks |= iteration.new_blocks
        placed = [block for table in self.blocks.values() for block in table]
        assert len(placed) == len(set(placed))
        drawn = {id: token(id, len(self.tokens[id])) for id in iteration.scheduled}
        for id, value in drawn.items():
            self.tokens[id].append(value)
        logprobs = {id: Logprobs(-value / 7, []) for id, value in drawn.items()}
        return IterationResult(iteration.epoch, iteration.step, drawn, logprobs)


class ForgetfulPool:
    """The sequences of one seat. Sometimes some of them lose tokens, or wait again as if they were not claimed."""

    def __init__(self, claims: list[Claim], seed: int) -> None:
        self.claims = {c.id: c for c in claims}
        self.tokens: dict[str, list[int]] = {c.id: [] for c in claims}
        self.logprobs: dict[str, list[float]] = {c.id: [] for c in claims}
        self.waiting = list(self.claims)
        self.running: set[str] = set()
        self.ended: set[str] = set()
        self.random = random.Random(seed)

    def lose(self) -> None:
        for id in self.claims:
            if self.random.random() < 0.3 and self.tokens[id]:
                count = self.random.randrange(len(self.tokens[id]))
                del self.tokens[id][count:], self.logprobs[id][count:]
                if id in self.ended or self.random.random() < 0.3:
                    self.ended.discard(id)
                    self.running.discard(id)
                    self.waiting = [*(w for w in self.waiting if w != id), id]

    def exchange(self, scheduler: Scheduler) -> None:
        commits, held = scheduler.take_commits(), scheduler.held()
        have = {c.id: n for c in commits if c.id in self.running and (n := self.append(c)) is not None}
        over = self.ended.intersection(c.id for c in commits)
        foreign = [id for id in held if id not in self.running and id not in over]
        self.waiting += [id for id in self.running if id not in held]
        self.running.intersection_update(held)
        room = scheduler.room().requests
        claimed, self.waiting = self.waiting[:room], self.waiting[room:]
        self.running.update(claimed)
        scheduler.drop(foreign)
        scheduler.rewind(have)
        scheduler.add([self.claim(id) for id in claimed])

    def claim(self, id: str) -> Claim:
        c = self.claims[id]
        return Claim(id, c.rank, c.prompt, list(self.tokens[id]), c.sampling, self.random.choice([0, 0, 2]))

    def append(self, commit: Commit) -> int | None:
        have = len(self.tokens[commit.id])
        if commit.index > have:
            return have
        self.tokens[commit.id] += commit.tokens[have - commit.index :]
        if commit.logprobs is not None:
            assert len(commit.logprobs) == len(commit.tokens)
            self.logprobs[commit.id] += [entry.token for entry in commit.logprobs[have - commit.index :]]
        if commit.end:
            self.running.remove(commit.id)
            self.ended.add(commit.id)
        return None


@settings(max_examples=150)
@given(
    st.sampled_from([Scheduler, RequestLevelScheduler]),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.booleans()), min_size=1, max_size=8),
    st.sets(st.integers(0, 60), max_size=6),
    st.integers(0, 1000),
)
def test_the_pool_gets_the_same_tokens_whatever_it_loses(
    kind: type[Scheduler], requests: list[tuple[int, int, bool]], losses: set[int], seed: int
) -> None:
    claims = [
        claim(f"r{i}", i, prompt, new, logprobs=0 if asked else None) for i, (prompt, new, asked) in enumerate(requests)
    ]
    pool, engine = ForgetfulPool(claims, seed), Engine()
    scheduler = scripted(kind, blocks=20, batch=3, length=40).scheduler
    for turn in range(2000):
        if turn in losses:
            pool.lose()
        iteration = scheduler.select()
        if turn % 2:  # the pool replies while the engine runs
            pool.exchange(scheduler)
        if iteration:
            scheduler.update(engine.run(iteration))
        if len(pool.ended) == len(claims) and turn > 60:
            break
        if not turn % 2 or iteration is None:
            pool.exchange(scheduler)
    for (prompt, new, asked), c in zip(requests, claims, strict=True):
        assert pool.tokens[c.id] == [token(c.id, prompt + i) for i in range(min(new, 40 - prompt))]
        assert pool.logprobs[c.id] == ([-value / 7 for value in pool.tokens[c.id]] if asked else [])
    pool.exchange(scheduler)
    assert (scheduler.held(), scheduler.blocks.held, scheduler.room().requests) == ([], 0, 3)
