"""How many engines a load needs: bounds, constant and noisy loads, an idle cluster, and what is read of the pool."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.autoscaling import EngineCount, Load, Scaling, engines_needed, load_of
from services.messages import EngineFigures
from services.overview import Overview, SeatOverview

FIGURES = EngineFigures("m", 1024, 100, 16, 50_000, "null")  # 1,600 tokens of KV cache
SLOTS = 1600.0

loads = st.builds(Load, st.integers(0, 500), st.floats(0, 20_000), st.sampled_from([0.0, SLOTS]))
delays = st.sampled_from([0.0, 3.0, 30.0, 300.0])


@st.composite
def scalings(draw: st.DrawFn) -> Scaling:
    least = draw(st.integers(1, 5))
    return Scaling(least, draw(st.integers(least, 12)), draw(st.integers(1, 40)), draw(delays), draw(delays))


def times(gaps: list[float]) -> list[float]:
    return list(accumulate(gaps))


steps = st.lists(st.floats(0.1, 60), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(scalings(), st.integers(0, 20), st.lists(st.tuples(st.floats(0.1, 60), loads), min_size=1, max_size=60))
def test_the_number_stays_within_the_bounds(scaling: Scaling, first: int, history: list[tuple[float, Load]]) -> None:
    count = EngineCount(scaling, first)
    now = 0.0
    for gap, load in history:
        now += gap
        assert scaling.min_engines <= count.update(now, load) <= scaling.max_engines


@settings(max_examples=60, deadline=None)
@given(scalings(), st.integers(1, 12), loads, steps)
def test_a_constant_load_changes_the_number_at_most_once(
    scaling: Scaling, first: int, load: Load, gaps: list[float]
) -> None:
    count = EngineCount(scaling, first)
    numbers = [count.wanted, *(count.update(now, load) for now in times(gaps))]
    assert sum(a != b for a, b in pairwise(numbers)) <= 1
    if sum(gaps[1:]) >= max(scaling.upscale_delay, scaling.downscale_delay) + 1e-6:
        assert numbers[-1] == engines_needed(load, scaling)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 2), st.integers(0, 90)), min_size=1, max_size=80))
def test_the_number_becomes_what_a_whole_delay_needed_at_least_or_at_most(
    history: list[tuple[float, int]],
) -> None:
    scaling = Scaling(1, 9, 10, 5.0, 20.0)
    count, now = EngineCount(scaling, 1), 0.0
    needed: list[tuple[float, int]] = []
    for gap, requests in history:
        now += gap
        before = count.wanted
        needed.append((now, engines_needed(Load(requests), scaling)))
        after = count.update(now, Load(requests))
        if after > before:
            assert all(number >= after for at, number in needed if at > now - scaling.upscale_delay)
        if after < before:
            assert all(number <= after for at, number in needed if at > now - scaling.downscale_delay)


@settings(max_examples=40, deadline=None)
@given(scalings(), st.integers(1, 12), steps)
def test_an_idle_cluster_has_the_least_number_after_the_delay(scaling: Scaling, first: int, gaps: list[float]) -> None:
    count, begin = EngineCount(scaling, first), count_of(first, scaling)
    for now in times(gaps):
        count.update(now, Load(0))
        idle = now - gaps[0]
        if idle >= scaling.downscale_delay + 1e-6:
            assert count.wanted == scaling.min_engines
        elif idle < scaling.downscale_delay - 1e-6:
            assert count.wanted == begin


def count_of(first: int, scaling: Scaling) -> int:
    return max(scaling.min_engines, min(scaling.max_engines, first))


@pytest.mark.parametrize(
    ("load", "needed"),
    [
        (Load(0), 1),
        (Load(8), 1),
        (Load(9), 2),
        (Load(33), 4),  # the most
        (Load(3, tokens=1440, capacity=SLOTS), 1),
        (Load(3, tokens=1441, capacity=SLOTS), 2),  # few requests with long prompts
        (Load(20, tokens=100, capacity=SLOTS), 3),
        (Load(3, tokens=10_000), 1),  # no engine has told its size
    ],
)
def test_requests_or_their_tokens_decide(load: Load, needed: int) -> None:
    assert engines_needed(load, Scaling(1, 4, 8, 0, 0)) == needed


def test_the_load_is_that_of_the_cluster_and_all_that_waits() -> None:
    def seat(name: str, **own: Any) -> SeatOverview:
        return SeatOverview(name, own.get("alive", True), FIGURES, own.get("running", 0), {"kv_usage": 0.25}, "", "o")

    seats = [seat("c/0", running=3), seat("c/1", running=2, alive=False), seat("other/0", running=5)]
    overview = Overview(7, 10, 0, 0, FIGURES, seats, {}, 1, waiting_tokens=70)
    assert load_of(overview, "c") == Load(requests=12, tokens=0.25 * SLOTS + 70, capacity=SLOTS)


def test_a_gap_without_samples_is_no_reason_to_remove() -> None:
    """The pool was away: what was needed before counts until the next sample."""
    count = EngineCount(Scaling(1, 4, 8, 0.0, 30.0), 1)
    count.update(0.0, Load(30))
    assert count.update(100.0, Load(0)) == 4
    assert count.update(129.0, Load(0)) == 4
    assert count.update(130.0, Load(0)) == 1
