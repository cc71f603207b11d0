"""The page of /metrics: the pools' sums and the gauges of engines and gateways as Prometheus text.

Every gateway renders the same page, so any of them may be asked, and one address is enough for Prometheus. With
several shards, the series of a pool and its engines have the label `shard`: a sum over shards would shrink while one
does not answer, and Prometheus would take that for a restart of its counters.
"""

from __future__ import annotations

import time
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from services.metrics.counters import values_of
from services.metrics.declared import (
    COUNTERS,
    ENGINE,
    FIGURES,
    FILES,
    GATEWAY_COUNTERS,
    GATEWAY_GAUGES,
    HISTOGRAMS,
    INFOS,
    LORA,
    OPTIONAL_GAUGES,
    POOL_GAUGES,
    SEAT_GAUGES,
)
from services.overview import Overview, SleepLevel
from services.requests import DEFAULT_TENANT, FinishReason, class_label
from services.seats import engine_of, seats_of_shard

MODEL, SHARD = "model_name", "shard"
GATEWAY = (MODEL, "gateway")
OF_SERVER = ("orca:gateways", "orca:gateways_wanted")  # the same in the pools of all models
# The values of labels whose series are on the page before the first increment, beside the living engines: those of
# requests without a key and a class, and all reasons and files
KNOWN: dict[str, Sequence[str]] = {
    "tenant": [DEFAULT_TENANT],
    "priority": [class_label(0)],
    "finished_reason": [reason.value for reason in FinishReason],
    "file": FILES,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings ask for, beside which the page shows what there is. `pool_bytes`: of each pool. The number of
    engines counts while no scheduler has told the pool another."""

    engines: int = 1
    gateways: int = 1
    pool_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelPage:
    """What the page shows of one model: the overviews of its pools, by the numbers of their shards. None: it does not
    answer. `adapters`: their names by digest; None: there can be none."""

    model: str
    overviews: Mapping[int, Overview | None]
    wanted: Wanted
    adapters: Mapping[str, Sequence[str]] | None = None

    def collect(self) -> Iterable[Metric]:
        for place, (shard, overview) in enumerate(self.overviews.items()):
            label = {SHARD: str(shard)} if len(self.overviews) > 1 else {}
            for family in self._metrics(place, overview):
                family.samples = [sample._replace(labels=sample.labels | label) for sample in family.samples]
                yield family
        if self.adapters is not None:
            yield self._lora(self.adapters)

    def _lora(self, names: Mapping[str, Sequence[str]]) -> Metric:
        """Return vLLM's metric of adapters, by what gateways say of the requests that name some."""
        states: dict[str, set[str]] = {"running": set(), "waiting": set()}
        for overview in filter(None, self.overviews.values()):
            for key in (key for gauges in overview.gateway_gauges.values() for key in gauges):
                kind, _, rest = key.partition(" ")
                state, _, digest = rest.partition(" ")
                if kind == "lora" and digest in names:
                    states[state].update(names[digest])
        labels = (MODEL, "max_lora", *(f"{state}_lora_adapters" for state in states))
        family = GaugeMetricFamily(LORA, INFOS[LORA], labels=labels)
        told = (",".join(sorted(adapters)) for adapters in states.values())
        family.add_metric((self.model, str(sum(map(len, names.values()))), *told), time.time())
        return family

    def _metrics(self, place: int, overview: Overview | None) -> Iterable[Metric]:
        """Yield the metrics of the pool at index `place` of the shards in the settings."""
        name = "orca:pool_answers"
        answers = GaugeMetricFamily(name, POOL_GAUGES[name], labels=(MODEL,))
        answers.add_metric((self.model,), overview is not None)
        yield answers
        if overview is not None:
            dealt = partial(seats_of_shard, place, len(self.overviews))
            overview = replace(overview, wanted={name: dealt(engines) for name, engines in overview.wanted.items()})
            settings = replace(self.wanted, engines=dealt(self.wanted.engines))
            yield from _Collector(overview, self.model, settings).collect()


def render(models: Sequence[ModelPage]) -> bytes:
    """Return the metrics of models, the default one first, as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(models))
    return generate_latest(registry)


class _Page:
    """The metrics of all pools, and once those of the gateways, which have registered in each pool. These have the name
    of the default model, and count the gateways and the requests of all."""

    def __init__(self, models: Sequence[ModelPage]) -> None:
        self._models = models
        self._model = models[0].model

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for page in self._models:
            for family in page.collect():
                if family.name in OF_SERVER and page is not self._models[0]:
                    continue
                shown = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                shown.samples += family.samples
        yield from families.values()
        yield from self._gateway_figures()

    def _gateway_figures(self) -> Iterable[Metric]:
        figures: dict[str, dict[str, float]] = {}
        for overview in (overview for page in self._models for overview in page.overviews.values()):
            figures |= overview.gateway_gauges if overview else {}
        families: list[tuple[str, GaugeMetricFamily | CounterMetricFamily]] = [
            *((key, GaugeMetricFamily(*named, labels=GATEWAY)) for key, named in GATEWAY_GAUGES.items()),
            *((key, CounterMetricFamily(*named, labels=GATEWAY)) for key, named in GATEWAY_COUNTERS.items()),
        ]
        for key, family in families:
            for gateway, gauges in figures.items():
                if key in gauges:
                    family.add_metric((self._model, gateway), gauges[key])
            yield family


class _Collector:
    """The metrics of one pool and its engines."""

    def __init__(self, overview: Overview, model_name: str, wanted: Wanted) -> None:
        self._overview = overview
        self._model = model_name
        self._wanted = wanted
        self._sums: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)  # by name, then by labels
        for series, value in overview.counters.items():
            name, values = values_of(series)
            self._sums[name][tuple(values)] = value
        self._engines = _engine_labels(overview)
        self._known = KNOWN | {"engine": [engine_of(name) for name in self._engines]}

    def collect(self) -> Iterable[Metric]:
        yield from self._pool_gauges()
        yield from self._seat_gauges()
        yield from self._figures()
        for name, counter in COUNTERS.items():
            family = CounterMetricFamily(name, counter.help, labels=(MODEL, *counter.labels))
            for values, value in self._with_zeros(self._sums[name], counter.labels):
                family.add_metric((self._model, *values), value)
            yield family
        for name in HISTOGRAMS:
            yield self._histogram(name)

    def _pool_gauges(self) -> Iterable[Metric]:
        o = self._overview
        numerics = [seat.figures.numerics for seat in o.seats if seat.alive and seat.figures]
        values: dict[str, float] = {
            "vllm:num_requests_running": o.running,
            "vllm:num_requests_waiting": o.waiting,
            "orca:ended_requests": o.ended,
            "orca:pool_bytes": o.bytes,
            "orca:pool_bytes_limit": self._wanted.pool_bytes,
            "orca:pool_full": o.full,
            "orca:engines": sum(seat.alive for seat in o.seats),
            "orca:engines_wanted": o.engines_wanted or self._wanted.engines,
            "orca:gateways": o.gateways,
            "orca:gateways_wanted": self._wanted.gateways,
            "orca:numerics": len(set(numerics)),
            "orca:fallback_engines": sum("fallback" in each.split() for each in numerics),
        }
        for name, value in values.items():
            gauge = GaugeMetricFamily(name, POOL_GAUGES[name], labels=(MODEL,))
            gauge.add_metric((self._model,), value)
            yield gauge

    def _seat_gauges(self) -> Iterable[Metric]:
        for gauges, always in ((SEAT_GAUGES, True), (OPTIONAL_GAUGES, False)):
            for key, (name, text) in gauges.items():
                gauge = GaugeMetricFamily(name, text, labels=(MODEL, *ENGINE))
                for seat in self._overview.seats:
                    if seat.alive and (always or key in seat.gauges):
                        gauge.add_metric((self._model, self._engines[seat.name]), seat.gauges.get(key, 0.0))
                yield gauge

    def _figures(self) -> Iterable[Metric]:
        size, kept, blocks = FIGURES
        memory = GaugeMetricFamily(size, FIGURES[size], labels=(MODEL, *ENGINE))
        info = GaugeMetricFamily(kept, FIGURES[kept], labels=(MODEL, *ENGINE, "weights"))
        cache = GaugeMetricFamily(blocks, FIGURES[blocks], labels=(MODEL, *ENGINE, "block_size", "num_gpu_blocks"))
        for seat in self._overview.seats:
            if seat.alive and seat.figures:
                labels = self._model, self._engines[seat.name]
                held = seat.level < SleepLevel.COLD
                memory.add_metric(labels, seat.figures.weight_bytes if held else 0)
                info.add_metric((*labels, seat.figures.weights), 1)
                cache.add_metric((*labels, str(seat.figures.block_size), str(seat.figures.num_blocks)), 1)
        yield from (memory, info, cache)

    def _with_zeros(
        self, sums: Mapping[tuple[str, ...], float], labels: tuple[str, ...]
    ) -> Iterable[tuple[tuple[str, ...], float]]:
        """Yield the sums by the values of their labels. A series whose labels have known values is there from the
        start: Prometheus' `rate` does not see the first increment of a series that appears with it."""
        zeros = dict.fromkeys(product(*(self._known.get(label, ()) for label in labels)), 0.0)
        return ((values, value) for values, value in (zeros | dict(sums)).items() if len(values) == len(labels))

    def _histogram(self, name: str) -> Metric:
        histogram = HISTOGRAMS[name]
        counted: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)  # by labels, then by bound
        for series, count in self._sums[f"{name}_bucket"].items():
            counted[series[:-1]][series[-1]] = count
        family = HistogramMetricFamily(name, histogram.help, labels=(MODEL, *histogram.labels))
        for values, total in self._with_zeros(self._sums[f"{name}_sum"], histogram.labels):
            reached, buckets = 0.0, []
            for bound in (*(str(b) for b in histogram.buckets), "+Inf"):
                reached += counted[values].get(bound, 0.0)
                buckets.append((bound, reached))
            family.add_metric((self._model, *values), buckets, total)
        return family


def _engine_labels(overview: Overview) -> dict[str, str]:
    """The label of each living seat: the number of its engine, or the whole name where two clusters share the pool and
    both have an engine of that number."""
    living = [seat.name for seat in overview.seats if seat.alive]
    numbers = Multiset(engine_of(name) for name in living)
    return {name: name if numbers[engine_of(name)] > 1 else engine_of(name) for name in living}
