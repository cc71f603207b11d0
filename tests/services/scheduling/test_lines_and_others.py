"""Other requests run in the same iterations with and without lines of batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.messages import Claim, EngineFigures
from services.pool.limits import BEHIND
from services.requests import BATCH_CLASS, SamplingParams
from services.scheduling import Knobs, Scheduler
from tests.services.scheduling.engine_model import EOS, EngineModel

BLOCKS, SIZE, LENGTH = 14, 4, 40
MOST, FIRST_LINE = 8, 50
SALTS = [str(number) for first in (0, FIRST_LINE) for number in range(first, first + MOST)]

knobs = st.builds(
    Knobs,
    max_batch_size=st.sampled_from([1, 2, 4]),
    token_budget=st.sampled_from([None, None, 8]),
    admission=st.sampled_from(["reserve", "on_demand"]),
    order=st.sampled_from(["fcfs", "priority"]),
    lookahead=st.sampled_from([0, 1]),
)


@dataclass(frozen=True)
class Arrival:
    after: int  # iterations
    rank: float  # possibly smaller than that of an earlier one, as after the death of another owner
    prompt: int
    new: int


arrivals = st.builds(Arrival, st.integers(0, 6), st.floats(0, 10), prompt=st.integers(1, 20), new=st.integers(1, 14))


def claim(number: int, rank: float, prompt: int, new: int, priority: int = 0) -> Claim:
    tokens = [100 * number + i for i in range(prompt)]
    return Claim(str(number), rank, tokens, [], SamplingParams(new), priority=priority)


class World:
    def __init__(self, knobs: Knobs) -> None:
        self.now = 0.0
        figures = EngineFigures("m", LENGTH, BLOCKS, SIZE, 10_000, "n")
        self.scheduler = Scheduler(epoch="e", figures=figures, knobs=knobs, eos_token_ids=[EOS], now=lambda: self.now)
        self.engine = EngineModel(BLOCKS, SIZE, SALTS)

    def run_lines(self, lines: list[Arrival], iterations: int) -> None:
        self.scheduler.add(
            [claim(FIRST_LINE + i, BEHIND + i, a.prompt, a.new, BATCH_CLASS) for i, a in enumerate(lines)]
        )
        for _ in range(iterations):
            if iteration := self.scheduler.select():
                self.scheduler.update(self.engine.run(iteration, []))

    def run_others(self, others: list[Arrival]) -> list[dict[str, int]]:
        """Return what is computed in each iteration until all requests have ended."""
        coming = sorted(enumerate(others), key=lambda other: other[1].after)
        open: set[str] = set()
        flights, told, step = [], [], 0
        while coming or open:
            while coming and coming[0][1].after <= step:
                number, a = coming.pop(0)
                self.scheduler.add([claim(number, a.rank, a.prompt, a.new)])
                open.add(str(number))
            while open and (iteration := self.scheduler.select()):
                flights.append(iteration)
                told.append(dict(iteration.scheduled))
            if flights:
                result = self.engine.run(flights.pop(0), [])
                self.scheduler.update(replace(result, elapsed=0.01))
            open -= {commit.id for commit in self.scheduler.take_commits() if commit.end}
            self.now += 0.01
            step += 1
        return told


@settings(max_examples=300)
@given(
    knobs, st.lists(arrivals, min_size=1, max_size=5), st.integers(1, 6), st.lists(arrivals, min_size=1, max_size=MOST)
)
def test_lines_do_not_change_the_iterations_of_others(
    knobs: Knobs, lines: list[Arrival], iterations: int, others: list[Arrival]
) -> None:
    alone, beside = World(knobs), World(knobs)
    beside.run_lines(lines, iterations)
    assert beside.run_others(others) == alone.run_others(others)
