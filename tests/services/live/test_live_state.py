"""The `state` event, from the differences of counters; and the recorded sample, with all events that a page shows."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from services.live.frames import Work
from services.live.state import GAP, TOKENS, TTFT, WINDOW, RecentOverviews
from services.messages import EngineFigures
from services.metrics import Counters
from services.metrics.declared import HISTOGRAMS
from services.overview import Overview, SeatOverview

SAMPLE = Path(__file__).parent / "data" / "live_sample.jsonl"  # which tests of the page replay
FIGURES = EngineFigures("m", 100, 50, 16, 100, "n")


def overview(counters: dict[str, float], seats: tuple[SeatOverview, ...] = ()) -> Overview:
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
        c.counters.inc(TOKENS, 1000 if second < 10 else 30, engine=str(second % 2))
        c.counters.observe(TTFT, 5.0 if second < 10 else 0.02, tenant="default", priority="0")
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
    gauges = {"ready": 1.0, "sleep": 1.0, "kv_usage": 0.5, "batch_size": 7.0, "spare_ready": 1.0, "engine_pid": 17.0}
    seats = SeatOverview("c/0", True, FIGURES, 4, gauges, ""), SeatOverview("c/1", False, None, 0, {}, "")
    recent = RecentOverviews()
    recent.add(overview({}, seats), 0.0)
    state = recent.state(1.5, {"m": overview({}, seats)}, demo, {"c/0": "1:a"})
    first, second = state["engines"]
    pids = {"engine_pid": 17, "scheduler_pid": 0} if demo else {}
    assert first == pids | {
        "name": "c/0",
        "alive": True,
        "ready": True,
        "sleep": "asleep",
        "failure": "",
        "spare": True,
        "spare_scheduler": False,
        "epoch": "1:a",
        "blocks": 50,
        "used": 25,
        "batch": 7,
    }
    assert (second["alive"], second["ready"], second["epoch"], second["blocks"]) == (False, False, None, 0)
    assert second["sleep"] == ""
    assert (state["at"], state["waiting"], state["running"], state["gateways"]) == (1500, 3, 4, 2)


def test_engines_of_a_cluster_that_is_gone_are_left_out_once_another_one_has_a_seat() -> None:
    def seat(name: str, alive: bool = False) -> SeatOverview:
        return SeatOverview(name, alive, FIGURES, 0, {"ready": 1.0, "spare_ready": 1.0}, "")

    models = {
        "a": overview({}, (seat("old/0"), seat("new/0", alive=True), seat("new/1"))),
        "b": overview({}, (seat("old.mb/0"),)),
    }
    recent = RecentOverviews()
    recent.add(overview({}), 0.0)
    state = recent.state(0.0, models, False, {})
    shown = {one["name"]: one["spare"] for one in state["engines"]}
    assert shown == {"new/0": True, "new/1": False, "old.mb/0": False}
    assert [row["engines"] for row in state["models"]] == [["new/0", "new/1"], ["old.mb/0"]]


def test_the_sample_has_all_that_a_page_shows() -> None:
    events = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    described: dict[str, dict[str, object]] = {}
    steps, works, ended, preempted = [], set[str](), dict[str, str](), set[int]()
    for event in events:
        if event["event"] == "state":
            assert [engine["name"] for engine in event["data"]["engines"]] == ["c/0"]
            continue
        assert event["event"] == "iterations"
        described |= event["data"]["requests"]
        for frame in event["data"]["iterations"]:
            steps.append(frame["step"])
            assert {str(n) for n, _, _ in frame["requests"]} <= set(described) - set(ended)
            works |= {work for _, _, work in frame["requests"]}
            ended |= {str(n): reason for n, reason in frame["ended"]}
            preempted |= set(frame["preempted"])
    assert steps == list(range(1, len(steps) + 1))
    assert works == set(Work)
    assert ended.keys() == described.keys()
    assert set(ended.values()) == {"length", "cancelled"}
    assert preempted
    assert len({"id" in request for request in described.values()}) == 2
