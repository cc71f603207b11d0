"""Metrics: their names, the counters of a process, and the Prometheus text of the pool's sums.

Processes send increments to the pool together with calls that they make anyway. The sums are kept there, so every
gateway renders the same figures and a restarted process loses none. Names are those of vLLM if the meaning is the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from services.overview import Overview, Seat

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = tuple(float(1 << i) for i in range(16))
_BATCH = tuple(float(1 << i) for i in range(10))


@dataclass(frozen=True, slots=True)
class Histogram:
    help: str
    buckets: tuple[float, ...]


# Counters: name -> (help, labels)
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "vllm:prompt_tokens": ("Prompt tokens computed", ()),
    "vllm:generation_tokens": ("Tokens sampled", ()),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", ()),
    "vllm:prefix_cache_hits": ("Prompt tokens found there", ()),
    "vllm:num_preemptions": ("Requests whose KV blocks were taken for others, to be computed anew", ()),
    "vllm:request_success": ("Requests that ended, by reason", ("finished_reason",)),
    "vllm:admission_rejections": ("Requests refused before they entered the pool, by reason", ("reason",)),
    "orca:iterations": ("Iterations of the model", ()),
    "orca:mixed_iterations": ("Iterations with initiation and increment requests in one batch", ()),
    "orca:reclaimed_requests": ("Requests taken from a dead scheduler's seat", ()),
    "orca:engine_losses": ("Times an engine died under its scheduler", ()),
    "orca:scheduler_faults": ("Times scheduling raised an exception; the request it was about got a strike", ()),
    "orca:engine_stuck": ("Engines that lived and finished nothing; counted as losses too", ()),
    "orca:timed_out_requests": ("Requests that ended because nothing of them had begun by their deadline", ()),
    "orca:poisoned_requests": (
        "Requests that ended because engines or schedulers died, or schedulers failed, under them",
        (),
    ),
    "orca:batch_lines": ("Lines of batches that were answered, by the file they go to", ("file",)),
    "orca:resent_tokens": ("Tokens committed again because the pool had lost them", ()),
}

HISTOGRAMS: dict[str, Histogram] = {
    "vllm:time_to_first_token_seconds": Histogram("From the gateway's receipt to the first token sent", _SECONDS),
    "vllm:inter_token_latency_seconds": Histogram("Between tokens of a request, as the gateway gets them", _SECONDS),
    "vllm:request_time_per_output_token_seconds": Histogram("(end - first token) / (tokens - 1)", _SECONDS),
    "vllm:e2e_request_latency_seconds": Histogram("From receipt to the end", _LATENCY),
    "vllm:request_prompt_tokens": Histogram("Prompt tokens of a request", _TOKENS),
    "vllm:request_generation_tokens": Histogram("Output tokens of a request", _TOKENS),
    "vllm:iteration_tokens_total": Histogram("Tokens computed in an iteration", _TOKENS),
    "orca:iteration_seconds": Histogram("Seconds an iteration took, seen by the scheduler", _SECONDS),
    "orca:iteration_requests": Histogram("Requests in an iteration", _BATCH),
    "orca:exchange_seconds": Histogram("Seconds of a pool exchange, seen by the scheduler", _SECONDS),
    "orca:gateway_loop_lag_seconds": Histogram("How late a gateway's event loop woke its heartbeat", _SECONDS),
}

# Gauges that a scheduler sends with each exchange: name in the pool -> (name of the metric, help)
SEAT_GAUGES: dict[str, tuple[str, str]] = {
    "ready": ("orca:ready", "1 while the engine can run iterations"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1"),
    "paused": ("orca:paused_requests", "Requests that hold KV blocks and gave their place in the batch to others"),
    "batch_size": ("orca:batch_size", "Requests in the last iteration"),
    "peak_batch_size": ("orca:peak_batch_size", "Most requests in one iteration since the scheduler took its seat"),
    "engine_pid": ("orca:engine_pid", "The engine process that has the weights"),
    "scheduler_pid": ("orca:scheduler_pid", "The scheduler process that holds the seat"),
    "spare_ready": ("orca:spare_ready", "1 while another engine process waits to take over"),
    "spare_schedulers": ("orca:spare_schedulers", "Schedulers with everything loaded that wait for the seat"),
    # the last take-over of the seat after a scheduler or an engine died: Unix times, and a duration
    "recovery_noticed": ("orca:recovery_noticed_time_seconds", "When the death was noticed"),
    "recovery_acquired": ("orca:recovery_acquired_time_seconds", "When the seat was held again"),
    "recovery_attached": ("orca:recovery_attached_time_seconds", "When its engine was attached, with weights"),
    "recovery_loading": ("orca:recovery_loading_seconds", "How long of that the weights were loaded"),
    "recovery_first_iteration": ("orca:recovery_first_iteration_time_seconds", "When its first iteration was finished"),
}

# Gauges that not every scheduler sends: a seat without one has no such line
OPTIONAL_GAUGES: dict[str, tuple[str, str]] = {
    "token_budget": ("orca:token_budget", "Tokens of one iteration at most"),
}


class Counters:
    """The increments of a process since they were last taken."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)

    def inc(self, name: str, by: float = 1, **labels: str) -> None:
        """Add `by` to a counter."""
        assert tuple(labels) == COUNTERS[name][1], f"no counter {name} with labels {labels}"
        self._sums[_series(name, labels)] += by

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count `value` in a histogram, `times` times."""
        buckets, counts, total = _series_of(name)
        self._sums[counts[bisect_left(buckets, value)]] += times
        self._sums[total] += value * times

    def take(self) -> dict[str, float]:
        """Return the increments since the last call."""
        taken, self._sums = dict(self._sums), defaultdict(float)
        return taken


def _series(name: str, labels: dict[str, str]) -> str:
    return "|".join((name, *labels.values()))


@cache
def _series_of(name: str) -> tuple[tuple[float, ...], list[str], str]:
    """The buckets of a histogram, the series that count in them and above them, and the series of the sum."""
    buckets = HISTOGRAMS[name].buckets
    return buckets, [f"{name}_bucket|{bound}" for bound in (*buckets, "+Inf")], f"{name}_sum"


def render(overview: Overview, model_name: str) -> bytes:
    """Return the metrics of the pool as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(overview, model_name))
    return generate_latest(registry)


class _Collector:
    def __init__(self, overview: Overview, model_name: str) -> None:
        self._overview = overview
        self._model = model_name

    def collect(self) -> Iterable[Metric]:
        yield from self._pool_gauges()
        yield from self._seat_gauges([seat for seat in self._overview.seats if seat.alive])
        for name, (text, labels) in COUNTERS.items():
            yield self._counter(name, text, labels)
        for name, histogram in HISTOGRAMS.items():
            yield self._histogram(name, histogram)

    def _pool_gauges(self) -> Iterable[Metric]:
        o = self._overview
        numerics = [seat.figures.numerics for seat in o.seats if seat.alive and seat.figures]
        fallbacks = sum("fallback" in each.split() for each in numerics)
        for name, text, value in (
            ("vllm:num_requests_running", "Sequences held by a scheduler", o.running),
            ("vllm:num_requests_waiting", "Sequences waiting in the pool", o.waiting),
            ("orca:ended_requests", "Ended sequences that can still be read", o.ended),
            ("orca:pool_bytes", "Bytes the pool counts for its sequences", o.bytes),
            ("orca:engines", "Seats with a living scheduler", sum(seat.alive for seat in o.seats)),
            ("orca:gateways", "Registered gateways", o.gateways),
            ("orca:numerics", "Kinds of numerics of the engines; tokens differ between them", len(set(numerics))),
            ("orca:fallback_engines", "Engines on transformers' own layers in place of a faster path", fallbacks),
        ):
            gauge = GaugeMetricFamily(name, text, labels=("model_name",))
            gauge.add_metric((self._model,), value)
            yield gauge

    def _seat_gauges(self, seats: list[Seat]) -> Iterable[Metric]:
        for key, (name, text) in SEAT_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=("model_name", "engine"))
            for seat in seats:
                gauge.add_metric((self._model, seat.name), seat.gauges.get(key, 0.0))
            yield gauge
        for key, (name, text) in OPTIONAL_GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=("model_name", "engine"))
            for seat in seats:
                if key in seat.gauges:
                    gauge.add_metric((self._model, seat.name), seat.gauges[key])
            yield gauge

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Metric:
        family = CounterMetricFamily(name, text, labels=("model_name", *labels))
        if not labels:
            family.add_metric((self._model,), self._overview.counters.get(name, 0.0))
        for series, value in self._overview.counters.items():
            if labels and series.startswith(name + "|"):
                family.add_metric((self._model, *series.split("|")[1:]), value)
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        counters, total, buckets = self._overview.counters, 0.0, []
        for bound in (*(str(b) for b in histogram.buckets), "+Inf"):
            total += counters.get(f"{name}_bucket|{bound}", 0.0)
            buckets.append((bound, total))
        family = HistogramMetricFamily(name, histogram.help, labels=("model_name",))
        family.add_metric((self._model,), buckets, counters.get(f"{name}_sum", 0.0))
        return family
