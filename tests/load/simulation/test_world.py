"""The real loop and scheduler around a virtual engine give exact times, the same in every run."""

import asyncio

import pytest

from load.curves import request_throughput
from load.simulation.cost import IterationTime
from load.simulation.pool import SimulatedPool, Users
from load.simulation.world import Policy, Window, World, percentile, run_simulated
from load.trace import Request
from load.workloads import paper_lengths, poisson, sized
from services.loop.clock import run_in_virtual_time


class Second:
    """A cost of one second for each stage of an iteration."""

    def __init__(self, stages: int = 1) -> None:
        self.time = IterationTime((1.0,) * stages)

    def iteration(self, rows, sampled):
        return self.time


def times(sizes: list[Request], stages: int = 1, **policy) -> list[list[float]]:
    served = run_simulated(sizes, Second(stages), Policy(num_slots=1024, max_model_len=512, **policy))
    return [one.times for one in served]


def test_requests_join_and_leave_at_any_iteration():
    sizes = [sized(4, 2), sized(4, 4), sized(4, 1)]
    assert times(sizes, max_batch_size=2) == [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [3.0]]


def test_a_batch_is_fixed_under_request_level_scheduling():
    sizes = [sized(4, 1), sized(4, 3), sized(4, 2)]
    assert times(sizes, max_batch_size=2, request_level=True) == [[1.0], [1.0, 2.0, 3.0], [4.0, 5.0]]


def test_as_many_batches_as_stages_keep_all_stages_busy():
    """The paper's figure 8a."""
    both = times([sized(4, 3)] * 2, stages=2, max_batch_size=1, batches_in_flight=2)
    assert both == [[2.0, 4.0, 6.0], [3.0, 5.0, 7.0]]


def test_one_batch_in_flight_leaves_stages_idle():
    both = times([sized(4, 3)] * 2, stages=2, max_batch_size=1, batches_in_flight=1)
    assert both == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]


def test_a_budget_cuts_prompts_into_chunks_behind_the_decodes():
    # 4 tokens of the first; then one of it and 3 of the second, twice; then the last one
    sizes = [sized(4, 4), sized(7, 1)]
    assert times(sizes, max_batch_size=2, token_budget=4) == [[1.0, 2.0, 3.0, 4.0], [4.0]]


def test_memory_bounds_the_batch():
    served = run_simulated([sized(16, 16)] * 2, Second(), Policy(8, num_slots=48, max_model_len=32))
    assert [one.times[0] for one in served] == [1.0, 17.0]


def test_a_request_that_comes_later_joins_at_the_next_iteration():
    trace = [sized(4, 4), Request([5] * 4, 1, at=1.5)]
    served = run_simulated(trace, Second(), Policy(8, 1024, 512))
    assert [one.times for one in served] == [[1.0, 2.0, 3.0, 4.0], [pytest.approx(4.0)]]


def test_a_user_asks_again_when_answered():
    async def main():
        pool, sizes = SimulatedPool(), iter([sized(4, 2), sized(4, 1), sized(4, 9)])
        async with World(pool, Second(), Policy(8, 1024, 512)), Users(pool, 1, lambda: next(sizes)):
            await asyncio.sleep(3.5)
        return [(one.arrived, one.times[0]) for one in pool.answers]

    assert run_in_virtual_time(main()) == [(0.0, 1.0), (2.0, 3.0), (3.0, 4.0)]


def test_the_same_run_gives_the_same_numbers():
    def run() -> list[list[float]]:
        served = run_simulated(poisson(paper_lengths(20), rate=0.05), Second(), Policy(4, 4096, 1024))
        return [one.times for one in served]

    assert run() == run()


def test_figures_of_a_run():
    served = run_simulated([sized(4, 1), sized(4, 3)], Second(), Policy(2, 1024, 512))
    assert request_throughput(served) == pytest.approx(2 / 3)
    assert [one.normalized_latency for one in served] == [1.0, 1.0]
    window = Window(1.0, 3.0)  # from the first token of both to before the last one
    assert window.token_throughput(served) == 1.5
    assert window.gaps(served) == [1.0]


def test_percentiles_are_values_that_came_up():
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (0, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0], 99) == 3.0
