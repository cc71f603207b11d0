"""Recorder: over random lives of a real scheduler, its frames are what the engine was told to compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.live import recorder as recorder_module
from services.messages import Commit, Iteration
from services.scheduling import Knobs, Scheduler
from services.scheduling.cost_model import CostModel
from tests.services.live.watched import Watched, watched
from tests.services.scheduling.scripted import EOS, WORD, Script, claim, scripted

BLOCKS, LENGTH = 12, 40


class Oracle:
    """Computes works from the messages to the engine alone."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}  # tokens computed of the requests that the engine knows
        self.reached: dict[str, int] = {}  # by id, also before
        self.prompts: dict[str, int] = {}

    def claimed(self, id: str, prompt: int, output: int) -> None:
        self.prompts[id] = prompt
        self.reached[id] = prompt + output - 1 if output else 0

    def works(self, iteration: Iteration) -> list[tuple[str, int, str]]:
        first = {new.id: new.num_computed_tokens for new in iteration.new}
        self.at |= first
        found = []
        for id, count in iteration.scheduled.items():
            start, prompt = self.at[id], self.prompts[id]
            if start < self.reached[id]:
                work = "r"
            elif start >= prompt:
                work = "t"
            else:
                work = "i" if id in first and start + count == prompt else "c"
            self.at[id] = start + count
            self.reached[id] = max(self.reached[id], start + count)
            found.append((id, count, work))
        return found

    def drafted(self, works: list[tuple[str, int, str]], more: dict[str, list[int]]) -> list[tuple[str, int, str]]:
        """Return the works of an iteration with the tokens of drafts that were right."""
        for id, right in more.items():
            self.at[id] += len(right)
            self.reached[id] = max(self.reached[id], self.at[id])
        return [(id, count + len(more.get(id, ())), work) for id, count, work in works]


@dataclass(frozen=True)
class Turn:
    arrivals: list[tuple[int, int, int]]  # prompt, new, and committed tokens
    cancel: int | None
    in_flight: bool  # it is cancelled, and the end is committed, while an iteration runs
    eos: int | None
    watch: bool
    commit: bool  # otherwise the pool is away


NOTHING = Turn([], None, False, None, True, True)
often = st.sampled_from([True, True, True, False])
arrivals = st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([0, 0, 0, 3]))
rarely = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 4))
turns = st.lists(
    st.builds(Turn, st.lists(arrivals, max_size=2), rarely, st.booleans(), rarely, often, often), max_size=25
)
knobs = st.sampled_from(
    [
        Knobs(3),
        Knobs(3, token_budget=7),
        Knobs(3, token_budget=6, admission="on_demand"),
        Knobs(3, admission="on_demand", prefix_caching=True),
        Knobs(4, token_budget=8, admission="on_demand", prefix_caching=True, lookahead=1),
        Knobs(2, token_budget=9, admission="on_demand", batches_in_flight=2),
        Knobs(3, num_speculative_tokens=5),
        Knobs(3, token_budget=9, admission="on_demand", prefix_caching=True, num_speculative_tokens=4),
    ]
)


class Life:
    """Runs a scheduler through turns; `expected` is what the recorder has to show."""

    def __init__(self, knobs: Knobs) -> None:
        self.seen = Watched(scripted(Scheduler, BLOCKS, length=LENGTH, knobs=knobs))
        self.scheduler, self.recorder = self.seen.script.scheduler, self.seen.recorder
        self.oracle = Oracle()
        self.in_flight: list[tuple[Iteration, list[tuple[str, int, str]], int]] = []
        self.expected: list[tuple[int, list[tuple[str, int, str]]]] = []
        self.shown: set[str] = set()  # open requests that have run since the recorder was turned on
        self.ends: list[tuple[str, str]] = []
        self.preempted: list[str] = []
        self.open: list[str] = []
        self.count = self.watches = 0

    def turn(self, turn: Turn) -> None:
        if turn.watch != self.recorder.watched:
            self.recorder.watch(turn.watch)
            self.watches += 1
            self.shown.clear()
        for prompt, new, done in turn.arrivals:
            id, self.count = f"r{self.count}", self.count + 1
            self.oracle.claimed(id, prompt, min(done, new - 1))
            self.scheduler.add([claim(id, self.count, prompt, new, output=(WORD,) * min(done, new - 1))])
            self.open.append(id)
        cancelled = [] if turn.cancel is None else self.open[turn.cancel : turn.cancel + 1]
        if not turn.in_flight:
            self.scheduler.cancel(cancelled)
        while iteration := self.scheduler.select():
            works = self.oracle.works(iteration)
            self.in_flight.append((iteration, works, self.watches))
            if self.recorder.watched:
                open = {id for id in iteration.released if self.scheduler.find(id)}
                self.preempted += sorted(open & self.shown)
                self.recorder.started(iteration)
                self.shown |= set(iteration.scheduled)
        if turn.in_flight and cancelled:
            self.scheduler.cancel(cancelled)
            self.commit(self.scheduler.take_commits())
        if self.in_flight:
            iteration, works, watches = self.in_flight.pop(0)
            batch = list(iteration.scheduled)
            eos = [] if turn.eos is None else batch[turn.eos : turn.eos + 1]
            result = Script.result_of(iteration, dict.fromkeys(eos, EOS))
            works = self.oracle.drafted(works, result.more)
            self.scheduler.update(result)
            if self.recorder.watched:
                self.recorder.finished(iteration, result, 0.02)
                if watches == self.watches:
                    self.expected.append((iteration.step, works))
        if turn.commit:
            self.commit(self.scheduler.take_commits())
        self.seen.take()

    def commit(self, commits: list[Commit]) -> None:
        ended = [(commit.id, commit.end.reason.value) for commit in commits if commit.end]
        self.open = [id for id in self.open if id not in dict(ended)]
        if self.recorder.watched:
            self.recorder.committed(commits)
            self.ends += [(id, reason) for id, reason in ended if id in self.shown]
        self.shown -= set(dict(ended))


@settings(max_examples=60)
@given(knobs, turns)
def test_each_token_that_is_computed_is_shown_once_and_as_what_it_is(knobs: Knobs, turns: list[Turn]) -> None:
    life = Life(knobs)
    for turn in [NOTHING, *turns]:
        life.turn(turn)
    for _ in range(30 * life.count + 2):
        life.turn(replace(NOTHING, watch=life.recorder.watched))
    assert not life.open
    assert life.seen.computed == life.expected
    shown = set(life.seen.ended)
    assert len(shown) == len(life.seen.ended)
    assert shown <= set(life.ends)
    if life.watches == 1:  # otherwise what was not taken is forgotten
        late = [end for end in life.ends if end not in shown]  # after the last frame
        assert late == life.ends[len(life.ends) - len(late) :]
        assert sorted(life.seen.preempted) == sorted(life.preempted)


def test_an_iteration_begins_when_it_was_selected_or_when_the_one_before_it_ended() -> None:
    """A loop that gets the processor late tells of the first iteration 40 ms after its end."""
    seen = watched(knobs=Knobs(1, lookahead=1))
    seen.script.scheduler.add([claim("a", 1, prompt=4, new=3)])
    taken: list[tuple[Iteration, float]] = []
    for selected, seconds in ((1.0, 0.01), (1.002, 0.005)):
        iteration = seen.script.select()
        assert iteration
        seen.time = selected
        seen.recorder.started(iteration)
        taken.append((iteration, seconds))
    for (iteration, seconds), told in zip(taken, (1.05, 1.051), strict=True):
        seen.time = told
        seen.recorder.finished(iteration, seen.script.result_of(iteration), seconds)
    seen.take()
    assert [(frame["at"], frame["ms"]) for frame in seen.frames] == [(1000, 10.0), (1010, 5.0)]


def test_what_is_computed_again() -> None:
    w = watched(knobs=Knobs(2))
    w.script.scheduler.add([claim("taken", 0, 6, 4, output=(WORD, WORD))])
    w.run()
    w.run()
    w.take()
    assert w.computed == [(1, [("taken", 8, "r")]), (2, [("taken", 1, "t")])]
    assert w.described[1].resumed == 2


def test_ends_without_an_iteration_are_in_the_next_frame() -> None:
    w = watched()
    w.script.scheduler.add([claim("a", 0, 3, 9), claim("b", 1, 3, 9)])
    w.run()
    w.take()
    w.script.scheduler.cancel(["a"])
    w.recorder.committed(w.script.scheduler.take_commits())
    assert w.take() is None
    w.run()
    w.take()
    assert w.ended == [("a", "cancelled")]


def test_what_the_prefix_cache_has_is_not_computed() -> None:
    w = watched(knobs=Knobs(2, prefix_caching=True))
    w.script.scheduler.add([claim("a", 0, 9, 1)])
    w.run()
    w.script.scheduler.add([claim("b", 1, 9, 1)])
    w.run()
    w.take()
    assert w.computed[1][1] == [("b", 1, "i")]
    assert (w.described[1].cached, w.described[2].cached) == (0, 8)


def test_requests_are_described_again_for_watchers_that_came_later() -> None:
    w = watched()
    w.script.scheduler.add([claim("a", 0, 3, 9)])
    told = []
    for seconds in (0.02, 0.02, recorder_module.DESCRIBE_AGAIN, 0.02):
        w.run(seconds)
        batch = w.take()
        assert batch
        told.append([request.id for request in batch.requests])
    assert told == [["a"], [], ["a"], []]


def test_requests_of_another_scheduler_are_described_no_more() -> None:
    w = watched()
    w.script.scheduler.add([claim("a", 0, 3, 9), claim("b", 0, 3, 9)])
    w.run()
    w.take()
    w.recorder.claimed([], ["a"])
    w.script.scheduler.drop(["a"])
    w.run(recorder_module.DESCRIBE_AGAIN)
    batch = w.take()
    assert batch
    assert [request.id for request in batch.requests] == ["b"]


def test_frames_that_nobody_takes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_FRAMES", 3)
    w = watched()
    w.script.scheduler.add([claim("a", 0, 3, 9)])
    for _ in range(5):
        w.run()
    w.take()
    assert [step for step, _ in w.computed] == [3, 4, 5]


def test_it_begins_in_the_middle_and_forgets_when_nobody_watches() -> None:
    w = Watched(scripted())
    w.script.scheduler.add([claim("a", 0, 3, 9)])
    w.script.step()
    w.recorder.watch(True)
    w.run()
    w.take()
    assert w.computed == [(2, [("a", 1, "t")])]
    w.run()
    w.recorder.watch(False)
    assert w.take() is None
    w.recorder.watch(True)
    w.run()
    batch = w.take()
    assert batch
    assert [request.n for request in batch.requests] == [2]


def test_drafts_are_shown_with_how_many_of_their_tokens_were_right() -> None:
    cost = CostModel()
    for tokens, seconds in ((1, 0.010), (8, 0.011)):
        cost.finished(tokens, tokens, seconds)
    w = watched(knobs=Knobs(2, num_speculative_tokens=4), cost=cost)
    w.script.scheduler.add([claim("a", 0, 8, 12)])
    while not w.ended:
        w.run()
        w.take()
    drafts = [tuple(draft) for frame in w.frames for draft in frame["drafts"]]  # type: ignore[attr-defined]
    assert drafts
    assert all(n == 1 and guesses == right for n, guesses, right in drafts)
    assert sum(tokens for _, works in w.computed for _, tokens, _ in works) == 8 + 12 - 1
