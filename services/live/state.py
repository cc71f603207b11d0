"""The `state` event of the live feed: the pool and its engines as of now, and latencies of the last seconds.

    {"at": 1750000000000, "model": "smollm2", "waiting": 3, "running": 12, "gateways": 2, "demo": false,
     "engines": [{"name": "c/0", "alive": true, "ready": true, "sleep": "", "failure": "", "spare": true,
                  "spare_scheduler": true, "epoch": "17:ab", "blocks": 4096, "used": 812, "batch": 12}],
     "ttft_ms": [41.0, 95.5], "gap_ms": [12.1, 19.8], "tokens_per_second": 391.0}

With several models, `model` has all their names, and `models` has for each of them
`{"name": "a", "waiting": 3, "running": 12, "engines": ["c/0"]}`. `ttft_ms` and `gap_ms` are median and 99th percentile
over all gateways of the pool, or null if there was no token. `failure`: why an engine could not load its model. `epoch`
is that of the last frames of the engine, or null. `batch` is the size of its last batch, `used` the KV blocks that
requests hold. With `demo`, an engine also has `engine_pid` and `scheduler_pid`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from services.metrics.counters import buckets, total
from services.metrics.declared import HISTOGRAMS
from services.overview import Overview, SeatOverview
from services.seats import cluster_of

WINDOW = 5.0  # seconds that latencies and rates are computed over
TTFT, GAP, TOKENS = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:generation_tokens"


class RecentOverviews:
    """The overviews of the last `WINDOW` seconds, whose differences say what happened meanwhile."""

    def __init__(self) -> None:
        self._overviews: deque[tuple[float, Overview]] = deque()  # with the time in seconds at which each was read

    def add(self, overview: Overview, at: float) -> None:
        if self._overviews and self._overviews[-1][0] == at:
            return
        self._overviews.append((at, overview))
        while len(self._overviews) > 1 and self._overviews[1][0] <= at - WINDOW:
            self._overviews.popleft()

    def clear(self) -> None:
        self._overviews.clear()

    def per_second(self, counter: str) -> float:
        """Return how fast a counter has grown, over all its labels."""
        if not self._overviews:
            return 0.0
        (began, first), (ended, last) = self._overviews[0], self._overviews[-1]
        seconds = ended - began
        return _increase(total(first.counters, counter), total(last.counters, counter)) / seconds if seconds else 0.0

    def quantile(self, histogram: str, share: float) -> float | None:
        """Return a quantile of what a histogram has counted, interpolated within its bucket; None if nothing."""
        if not self._overviews:
            return None
        first, last = (
            buckets(overview.counters, histogram) for _, overview in (self._overviews[0], self._overviews[-1])
        )
        counts = [_increase(before, after) for before, after in zip(first, last, strict=True)]
        rank, lower = share * sum(counts), 0.0
        if not rank:
            return None
        for bound, count in zip(HISTOGRAMS[histogram].buckets, counts, strict=False):
            if rank <= count:
                return lower + (bound - lower) * rank / count
            rank, lower = rank - count, bound
        return lower

    def quantiles_ms(self, histogram: str) -> list[float] | None:
        found = [self.quantile(histogram, share) for share in (0.5, 0.99)]
        return [round(seconds * 1000, 1) for seconds in found if seconds is not None] or None

    def state(self, at: float, models: Mapping[str, Overview], demo: bool, epochs: Mapping[str, str]) -> dict[str, Any]:
        """Return the data of the event. `at` is the Unix time in seconds, `models` are the overviews of each model by
        its name, `epochs` the epochs of the last frames, by engine."""
        assert self._overviews, "no overview was added"
        overview = self._overviews[-1][1]
        rows = {"models": [_model(name, own) for name, own in models.items()]} if len(models) > 1 else {}
        return {
            "at": round(at * 1000),
            "model": ", ".join(models),
            **rows,
            "waiting": overview.waiting,
            "running": overview.running,
            "gateways": overview.gateways,
            "engines": [_engine(seat, demo, epochs.get(seat.name)) for own in models.values() for seat in _shown(own)],
            "ttft_ms": self.quantiles_ms(TTFT),
            "gap_ms": self.quantiles_ms(GAP),
            "tokens_per_second": round(self.per_second(TOKENS), 1),
            "demo": demo,
        }


def _model(name: str, overview: Overview) -> dict[str, Any]:
    engines = [seat.name for seat in _shown(overview)]
    return {"name": name, "waiting": overview.waiting, "running": overview.running, "engines": engines}


def _shown(overview: Overview) -> list[SeatOverview]:
    """The seats of a model. A cluster that is gone keeps its seats for some minutes; they are left out once another one
    has a seat."""
    living = {cluster_of(seat.name) for seat in overview.seats if seat.alive}
    return [seat for seat in overview.seats if not living or cluster_of(seat.name) in living]


def _engine(seat: SeatOverview, demo: bool, epoch: str | None) -> dict[str, Any]:
    gauges, blocks = seat.gauges, seat.figures.num_blocks if seat.figures else 0
    shown = {
        "name": seat.name,
        "alive": seat.alive,
        "ready": seat.ready,
        "sleep": seat.level.name.lower() if seat.level else "",
        "failure": seat.failure,
        "spare": seat.alive and gauges.get("spare_ready") == 1,
        "spare_scheduler": seat.alive and gauges.get("spare_schedulers", 0) > 0,
        "epoch": epoch,
        "blocks": blocks,
        "used": round(blocks * gauges.get("kv_usage", 0.0)),
        "batch": round(gauges.get("batch_size", 0.0)),
    }
    pids = {name: round(gauges.get(name, 0.0)) for name in ("engine_pid", "scheduler_pid")}
    return shown | pids if demo else shown


def _increase(before: float, after: float) -> float:
    """Return by how much a sum has grown. A sum that shrank belongs to another pool, and counts from 0."""
    return after - before if after >= before else after
