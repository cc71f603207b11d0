"""IterationCost: an engine with any constant costs per call, token and pair never counts as stuck."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.loop.iteration_cost import LEAST, PATIENCE, READING, IterationCost
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams


def iteration(prompts: list[int], increments: int) -> Iteration:
    new = [NewRequest(f"n{i}", [5] * length, length, SamplingParams(9)) for i, length in enumerate(prompts)]
    scheduled = {n.id: len(n.token_ids) for n in new} | {f"i{i}": 1 for i in range(increments)}
    return Iteration("e", 1, scheduled, new)


sizes = st.builds(iteration, st.lists(st.integers(1, 8192), max_size=4), st.integers(1, 64))


@settings(max_examples=200)
@given(
    st.tuples(st.floats(1e-4, 10), st.floats(1e-6, 1), st.floats(0, 1e-3)),
    st.lists(sizes, min_size=1, max_size=10),
    sizes,
)
def test_the_estimate_is_an_upper_bound(
    rates: tuple[float, float, float], finished: list[Iteration], next_one: Iteration
) -> None:
    each, token, pair = rates

    def seconds(it: Iteration) -> float:
        pairs = sum(len(new.token_ids) ** 2 for new in it.new) // 2
        return each + token * sum(it.scheduled.values()) + min(pair, token / 512) * pairs

    cost = IterationCost()
    for it in finished:
        cost.finished(it, seconds(it))
    assert PATIENCE * cost.estimate(next_one) >= seconds(next_one)


def test_it_learns_from_iterations_of_each_size() -> None:
    cost = IterationCost()
    cost.finished(iteration([], 4), 0.1)
    far = cost.estimate(iteration([4096], 0))
    cost.finished(iteration([4000], 4), 30.0)
    near = cost.estimate(iteration([4096], 0))
    assert 30 <= near < 90 < far
    assert cost.estimate(iteration([], 4)) == 0.1
    assert cost.limit(iteration([], 4)) == LEAST
    assert cost.limit(iteration([4096], 0)) == PATIENCE * near


def test_a_slow_iteration_is_forgotten_after_a_while() -> None:
    cost = IterationCost()
    cost.finished(iteration([], 1), 100.0)
    cost.finished(iteration([], 1), 0.1)
    assert cost.estimate(iteration([], 1)) > 90
    for _ in range(1000):
        cost.finished(iteration([], 1), 0.1)
    assert cost.estimate(iteration([], 1)) == pytest.approx(0.1)


def test_a_cold_engine_gets_more_time_for_a_long_prompt() -> None:
    cost = IterationCost()
    assert cost.limit(iteration([10], 0)) == 240
    assert cost.limit(iteration([8192], 0)) > 1000
    assert cost.work(iteration([], 7)) == 7


def test_a_chunk_counts_its_context_and_a_cached_prefix_is_not_computed() -> None:
    cost = IterationCost()
    long = NewRequest("a", [5] * 4096, 4096, SamplingParams(9))
    first = Iteration("e", 1, {"a": 1024}, [long])
    assert cost.work(first) == 1024 + 1024**2 // 2 // 512
    cost.finished(first, 1.0)
    assert cost.work(Iteration("e", 2, {"a": 1024})) == 1024 + (1024 * 1024 + 1024**2 // 2) // 512
    cost.finished(Iteration("e", 2, {"a": 3072}), 1.0)
    assert cost.work(Iteration("e", 4, {"a": 1})) == 1
    assert cost.estimate(iteration([], 1 << 15)) == 2.0  # the second chunk had more work than 1 << 14
    found = NewRequest("b", [5] * 4096, 4096, SamplingParams(9), num_computed_tokens=4080)
    assert cost.work(Iteration("e", 5, {"b": 16}, [found])) == 16 + (16 * 4080 + 128) // 512


def test_a_prompt_is_tracked_to_its_end_with_any_chunks() -> None:
    cost = IterationCost()
    long = NewRequest("a", [5] * 4096, 4096, SamplingParams(9))
    cost.finished(Iteration("e", 1, {"a": 1}, [long]), 1.0)  # a chunk of one token
    assert cost.work(Iteration("e", 2, {"a": 4095})) == 4095 + (4095 + 4095**2 // 2) // 512
    cost.finished(Iteration("e", 2, {"a": 4095}), 1.0)
    assert cost.work(Iteration("e", 3, {"a": 512})) == 512  # the prompt is complete
    cost.finished(Iteration("e", 3, {"b": 1}, [long, NewRequest("b", [5], 1, SamplingParams(1))]), 1.0)
    cost.finished(Iteration("e", 4, {"c": 1}, [NewRequest("c", [5], 1, SamplingParams(1))], released=["a"]), 1.0)
    assert cost.work(Iteration("e", 5, {"a": 512, "b": 512, "c": 512})) == 3 * 512
    cost.finished(Iteration("e", 5, {"a": 1}, [long]), 1.0)
    cost.finished(Iteration("of another owner", 1, {"c": 1}), 1.0)
    assert cost.work(Iteration("of another owner", 2, {"a": 512})) == 512


def test_an_engine_has_time_to_read_an_adapter() -> None:
    """However short iterations are: it would be killed again and again."""
    cost = IterationCost()
    cost.finished(iteration([], 4), 0.1)
    new = NewRequest("n", [5], 1, SamplingParams(9, adapter="digest"))
    assert cost.limit(Iteration("e", 1, {"n": 1}, [new])) == LEAST + READING
    assert cost.limit(Iteration("e", 2, {"n": 1}, [])) == LEAST
