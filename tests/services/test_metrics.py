"""Metrics: increments of several processes add up to one Prometheus page."""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from services.messages import EngineFigures
from services.metrics import COUNTERS, HISTOGRAMS, OPTIONAL_GAUGES, SEAT_GAUGES, Counters, render
from services.overview import Overview, Seat


def page(*takes: dict[str, float], **gauges: float) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    sums: Counter[str] = Counter()
    for take in takes:
        sums.update(take)
    return shown([Seat("c/0", True, None, 3, {"kv_usage": 0.5} | gauges, "")], sums)


def shown(seats: list[Seat], sums: dict[str, float]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    overview = Overview(7, 3, 2, 99, None, seats, dict(sums), 1)
    families = text_string_to_metric_families(render(overview, "tiny").decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_counters_of_two_processes_add_up() -> None:
    a, b = Counters(), Counters()
    a.inc("vllm:request_success", finished_reason="stop")
    b.inc("vllm:request_success", 2, finished_reason="stop")
    b.inc("vllm:request_success", finished_reason="length")
    samples = page(a.take(), b.take())
    assert samples["vllm:request_success_total", (("finished_reason", "stop"), ("model_name", "tiny"))] == 3
    assert samples["vllm:request_success_total", (("finished_reason", "length"), ("model_name", "tiny"))] == 1
    assert a.take() == {}


def test_histogram_buckets_are_cumulative_and_end_in_the_count() -> None:
    counters = Counters()
    for value in (0.5, 3, 3, 10**9):
        counters.observe("vllm:iteration_tokens_total", value)
    samples = page(counters.take())

    def bucket(bound: str) -> float:
        return samples["vllm:iteration_tokens_total_bucket", (("le", bound), ("model_name", "tiny"))]

    assert [bucket("1.0"), bucket("2.0"), bucket("4.0"), bucket("+Inf")] == [1, 1, 3, 4]
    assert samples["vllm:iteration_tokens_total_count", (("model_name", "tiny"),)] == 4


def test_every_metric_is_on_the_page_from_the_start() -> None:
    names = {name for name, _ in page()}
    for name, (_, labels) in COUNTERS.items():
        assert labels or f"{name}_total" in names
    for name in HISTOGRAMS:
        assert f"{name}_count" in names
    for name, _ in SEAT_GAUGES.values():
        assert name in names
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting"} <= names


def test_an_optional_gauge_is_not_shown_as_zero() -> None:
    names = {name for name, _ in OPTIONAL_GAUGES.values()}
    assert not names & {name for name, _ in page()}
    samples = page(token_budget=512, paused=0)
    labels = (("engine", "c/0"), ("model_name", "tiny"))
    assert [samples[name, labels] for name in ("orca:token_budget", "orca:paused_requests")] == [512, 0]


def test_different_numerics_of_engines_are_counted() -> None:
    def kinds(*numerics: str, alive: int = 9, name: str = "orca:numerics") -> float:
        seats = [
            Seat(f"c/{i}", i < alive, EngineFigures("m", 256, 8, 16, 320, each), 0, {}, "")
            for i, each in enumerate(numerics)
        ]
        return shown(seats, {})[name, (("model_name", "tiny"),)]

    assert kinds() == 0
    assert kinds("a", "a") == 1
    assert kinds("a", "b", "b") == 2
    assert kinds("a", "b", alive=1) == 1
    assert kinds("r cpu native 1a", "r cpu sdpa fallback 2b", "r cpu sdpa 2b", name="orca:fallback_engines") == 1
