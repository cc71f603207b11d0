"""RecentOverviews: latencies and rates of the last seconds, of the differences of counters."""

from __future__ import annotations

import itertools
import random

import pytest

from services.live.state import GAP, TOKENS, TTFT, WINDOW, RecentOverviews
from services.messages import EngineFigures
from services.metrics import HISTOGRAMS, Counters
from services.overview import Overview, Seat

FIGURES = EngineFigures("m", 100, 50, 16, 100, "n")


def overview(counters: dict[str, float], seats: tuple[Seat, ...] = ()) -> Overview:
    return Overview(3, 4, 0, 0, FIGURES, list(seats), dict(counters), gateways=2)


class Counted:
    """Counters of all gateways, as the pool sums them."""

    def __init__(self) -> None:
        self.counters, self.sums, self.recent = Counters(), dict[str, float](), RecentOverviews()

    def read(self, at: float) -> RecentOverviews:
        for name, by in self.counters.take().items():
            self.sums[name] = self.sums.get(name, 0.0) + by
        self.recent.add(overview(self.sums), at)
        return self.recent


def test_only_what_happened_in_the_window_counts() -> None:
    c = Counted()
    for second in range(20):
        c.counters.inc(TOKENS, 1000 if second < 10 else 30)
        c.counters.observe(TTFT, 5.0 if second < 10 else 0.02)
        recent = c.read(float(second))
    assert recent.per_second(TOKENS) == 30
    slowest = recent.quantile(TTFT, 0.99)
    assert slowest
    assert slowest < 0.1
    for second in range(20, 20 + int(WINDOW) + 2):
        recent = c.read(float(second))
    assert recent.quantiles_ms(TTFT) is None
    assert recent.per_second(TOKENS) == 0


def test_quantiles_are_in_the_bucket_of_the_true_ones() -> None:
    c, values = Counted(), sorted(random.Random(1).lognormvariate(-4, 1) for _ in range(999))
    c.read(0.0)
    for value in values:
        c.counters.observe(GAP, value)
    recent = c.read(1.0)
    bounds = (0.0, *HISTOGRAMS[GAP].buckets)
    for share in (0.5, 0.99):
        found, true = recent.quantile(GAP, share), values[int(share * len(values))]
        assert found
        assert any(low <= found <= high and low <= true <= high for low, high in itertools.pairwise(bounds))


def test_one_overview_says_nothing_about_rates_and_is_counted_once() -> None:
    recent, one = RecentOverviews(), overview({TOKENS: 1000.0})
    recent.add(one, 0.0)
    recent.add(one, 3.0)
    assert recent.per_second(TOKENS) == 0
    assert recent.quantiles_ms(TTFT) is None


def test_a_pool_that_began_anew_counts_from_nothing() -> None:
    recent = RecentOverviews()
    recent.add(overview({TOKENS: 1000.0}), 0.0)
    recent.add(overview({TOKENS: 10.0}), 1.0)
    assert recent.per_second(TOKENS) == 10


@pytest.mark.parametrize("demo", [False, True])
def test_the_state_of_engines(demo: bool) -> None:
    gauges = {"ready": 1.0, "kv_usage": 0.5, "batch_size": 7.0, "spare_ready": 1.0, "engine_pid": 17.0}
    seats = Seat("c/0", True, FIGURES, 4, gauges, ""), Seat("c/1", False, None, 0, {}, "")
    recent = RecentOverviews()
    recent.add(overview({}, seats), 0.0)
    state = recent.state(1.5, "m", demo, {"c/0": "1:a"})
    first, second = state["engines"]
    pids = {"engine_pid": 17, "scheduler_pid": 0} if demo else {}
    assert first == pids | {
        "name": "c/0",
        "alive": True,
        "ready": True,
        "spare": True,
        "spare_scheduler": False,
        "epoch": "1:a",
        "blocks": 50,
        "used": 25,
        "batch": 7,
    }
    assert (second["alive"], second["ready"], second["epoch"], second["blocks"]) == (False, False, None, 0)
    assert (state["at"], state["waiting"], state["running"], state["gateways"]) == (1500, 3, 4, 2)
