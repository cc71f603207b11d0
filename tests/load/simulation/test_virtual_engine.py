"""The virtual engine: which requests get a token, and exact times in the pipeline."""

import asyncio

from load.simulation.cost import IterationTime
from load.simulation.engine import VirtualEngine
from services.loop.clock import run_in_virtual_time
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams


class Fixed:
    """A cost that is the same for all iterations; records its arguments."""

    def __init__(self, *stages: float, hand_over: float = 0.0) -> None:
        self.time, self.asked = IterationTime(stages, hand_over), []

    def iteration(self, rows, sampled):
        self.asked.append((rows, sampled))
        return self.time


def new(id: str, tokens: int) -> NewRequest:
    return NewRequest(id, [5] * tokens, tokens, SamplingParams(16))


def test_a_token_comes_with_the_last_of_what_is_known():
    cost = Fixed(1.0)

    async def main():
        engine = VirtualEngine(cost)
        iterations = (
            Iteration("e", 1, {"a": 4, "b": 3}, [new("a", 6), new("b", 3)]),
            Iteration("e", 2, {"a": 2, "b": 1}),
            Iteration("e", 3, {"a": 1, "c": 1}, [new("c", 1)], released=["b"]),
        )
        return [set((await engine.start(iteration)).tokens) for iteration in iterations]

    assert run_in_virtual_time(main()) == [{"b"}, {"a", "b"}, {"a", "c"}]
    assert cost.asked == [([(0, 4), (0, 3)], 1), ([(4, 2), (3, 1)], 2), ([(6, 1), (0, 1)], 2)]


def test_a_request_that_comes_again_starts_anew():
    cost = Fixed(1.0)

    async def main():
        engine = VirtualEngine(cost)
        await engine.start(Iteration("e", 1, {"a": 3}, [new("a", 3)]))
        await engine.start(Iteration("e", 2, {"a": 4}, [new("a", 4)], released=["a"]))

    run_in_virtual_time(main())
    assert cost.asked == [([(0, 3)], 1), ([(0, 4)], 1)]


def ends(cost: Fixed, starts: list[float]) -> list[float]:
    """The ends of iterations of one request each that are started at `starts`."""

    async def one(engine: VirtualEngine, step: int, at: float) -> float:
        await asyncio.sleep(at)
        await engine.start(Iteration("e", step, {f"{step}": 1}, [new(f"{step}", 1)]))
        return asyncio.get_running_loop().time()

    async def main():
        engine = VirtualEngine(cost)
        return await asyncio.gather(*(one(engine, step, at) for step, at in enumerate(starts)))

    return run_in_virtual_time(main())


def test_one_stage_runs_one_after_the_other():
    assert ends(Fixed(2.0), [0.0, 0.5, 10.0]) == [2.0, 4.0, 12.0]


def test_stages_are_at_different_iterations_at_once():
    assert ends(Fixed(2.0, 2.0), [0.0, 0.0, 0.0]) == [4.0, 6.0, 8.0]


def test_the_slowest_stage_sets_the_pace():
    assert ends(Fixed(1.0, 3.0, 1.0), [0.0, 0.0, 0.0]) == [5.0, 8.0, 11.0]


def test_a_hand_over_delays_and_keeps_no_stage_busy():
    assert ends(Fixed(2.0, 2.0, hand_over=0.5), [0.0, 0.0]) == [4.5, 6.5]
