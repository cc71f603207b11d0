"""The drain rate: measured under load alone, over enough ends, forgotten with time."""

from __future__ import annotations

import pytest

from gateway.drain import MEMORY, Drain
from services.overview import Overview


def overview(waiting: int, ends: float) -> Overview:
    counters = {"vllm:request_success|stop": ends / 2, "vllm:request_success|length": ends / 2, "orca:iterations": 1e6}
    return Overview(waiting, 32, 0, 0, None, [], counters, 1)


def run(drain: Drain, seconds: int, rate: float, waiting: int, start: float = 0.0, ends: float = 0.0) -> float:
    """A look each second; returns the ends at the last."""
    for second in range(seconds + 1):
        drain.observe(overview(waiting, ends + rate * second), start + second)
    return ends + rate * seconds


def test_ends_of_all_reasons_count_while_somebody_waits() -> None:
    drain = Drain()
    run(drain, 10, 12.0, waiting=100)
    assert drain.rate == pytest.approx(12.0)
    assert drain.wait(120) == pytest.approx(10.0)


def test_nothing_is_known_at_first_nor_while_nobody_waits() -> None:
    drain = Drain()
    assert drain.rate is None
    assert drain.wait(1000) is None
    run(drain, 60, 1.0, waiting=0)
    assert drain.rate is None


def test_a_burst_whose_first_has_not_ended_is_not_judged() -> None:
    drain = Drain()
    run(drain, 30, 0.0, waiting=500)
    assert drain.rate is None


def test_the_rate_is_that_of_the_last_seconds() -> None:
    drain = Drain()
    ends = run(drain, 30, 4.0, waiting=100)
    run(drain, 10, 20.0, waiting=100, start=30.0, ends=ends)
    assert drain.rate == pytest.approx(20.0)


def test_ends_that_come_in_batches_are_averaged_over_some() -> None:
    """A batch of 32 ends each 40 s, 0.8 in a second: over ten seconds that would be 0 or 3.2."""
    drain, rates = Drain(), []
    for second in range(119):
        drain.observe(overview(100, second // 40 * 32), float(second))
        rates.append(drain.rate)
    assert all(rate is None or 0.4 < rate < 1.6 for rate in rates)
    assert rates[-1] is not None


def test_what_was_long_ago_is_forgotten() -> None:
    drain = Drain()
    ends = run(drain, 20, 10.0, waiting=10)
    drain.observe(overview(0, ends), 20.0 + MEMORY + 1)
    assert drain.rate is None


def test_a_pool_that_lost_its_counters_is_measured_anew() -> None:
    drain = Drain()
    run(drain, 20, 10.0, waiting=10, ends=5000.0)
    drain.observe(overview(10, 0.0), 21.0)
    assert drain.rate is None
    run(drain, 10, 2.0, waiting=10, start=22.0)
    assert drain.rate == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("excess", "seconds"), [(0, 1), (1, 1), (50, 5), (51, 6), (100_000, 120)])
def test_retry_after_is_the_time_until_there_is_room(excess: int, seconds: int) -> None:
    drain = Drain()
    assert drain.retry_after(excess) == 1
    run(drain, 10, 10.0, waiting=10)
    assert drain.retry_after(excess) == seconds
