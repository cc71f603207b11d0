"""Gains and unfinished curves of section 6.2, compared with cases computed by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from load.bench.gpu import end_to_end
from load.bench.gpu.bench import Budget, GpuScale
from load.bench.gpu.end_to_end import EITHER, ITERATION, REQUEST, Variant, gains
from load.curves import Curve, Point
from load.trace import Answer, Request

SLOW = Curve("request-level 8", 2.0, [Point(0.5, 0.1), Point(1.5, 0.3)])
FAST = Curve("iteration-level 8", 8.0, [Point(2.0, 0.1), Point(6.0, 0.3)])
LONE = Curve("batch of 1", 1.0, [Point(0.4, 0.05), Point(0.9, 0.25)])


def test_the_ratio_is_that_of_the_best_at_the_same_latency() -> None:
    at_fast, at_slow, most = gains([SLOW, FAST, LONE], {"a": 0.2, "b": 0.06})
    assert (at_fast[ITERATION], at_fast["iteration_label"]) == (pytest.approx(4.0), "iteration-level 8")
    assert (at_fast[REQUEST], at_fast["request_label"]) == (pytest.approx(1.0), "request-level 8")
    assert at_fast["ratio"] == pytest.approx(4.0)
    # a batch of one is both policies: neither gains at a latency that no batch reaches
    assert at_slow["request_label"] == at_slow["iteration_label"] == "batch of 1"
    assert at_slow["ratio"] == pytest.approx(1.0)
    assert (most[ITERATION], most[REQUEST], most["ratio"]) == (8.0, 2.0, 4.0)


def test_there_is_no_ratio_where_the_baseline_is_never_so_fast() -> None:
    level, _ = gains([SLOW, FAST.__class__("iteration-level 8", 8.0, [Point(2.0, 0.01)])], {"a": 0.05})
    assert (level[REQUEST], level["ratio"]) == (0.0, None)
    assert gains([FAST], {"a": 0.2}) == []


def test_a_curve_ends_before_a_trace_that_is_longer_than_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first point takes nearly all the time. Only the engine is replaced, by the times that it takes."""
    traces: list[list[Request]] = []
    now = [0.0]
    scale = GpuScale(loads=(1.0, 1.1))
    bench: Any = SimpleNamespace(engine=None, budget=Budget(3.0, lambda: now[0]), scale=scale)

    def serve(engine: object, trace: list[Request], variant: Variant) -> list[Answer]:
        traces.append(trace)
        now[0] = 0.0 if len(traces) < 2 else 2.9
        return [Answer(one, one.at, times=[one.at + 2.0]) for one in trace]

    monkeypatch.setattr(end_to_end, "serve", serve)
    curve = end_to_end._curve(bench, Variant(EITHER, 1), 3)
    assert curve.peak == scale.least / 2.0  # all there at once, ended after 2 s
    assert len(curve.points) == 1
    assert [len(trace) for trace in traces] == [scale.least, scale.least]


def test_a_variant_names_its_scheduler() -> None:
    assert Variant(REQUEST, 8).setup.scheduler is end_to_end.RequestLevelScheduler
    assert Variant(ITERATION, 8).setup.scheduler is Variant(EITHER, 1).setup.scheduler is end_to_end.Scheduler
    assert Variant(REQUEST, 8).setup.knobs.max_batch_size == 8
