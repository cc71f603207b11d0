"""A node that joins while the cluster serves takes work: an engine that had no room starts there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from load.chaos.checker import Least
from load.nodes.cluster import Cluster
from load.nodes.trial import NULL, NodeOptions, requests, trial, verdict
from load.report import table
from load.server import until

STREAMS = 16
BEFORE, AFTER = 20.0, 30.0  # seconds of load before the node is started, and after its engine is ready
START = 120.0  # seconds in which the node's engine must be ready
# the first worker has room for one of them
SETTINGS = NULL | {"engines": 2, "gateways": 1}


def run(options: NodeOptions) -> tuple[str, bool]:
    with Cluster(options.folder, SETTINGS) as cluster:
        cluster.add_worker()
        cluster.deploy()
        return asyncio.run(_run(cluster))


async def _run(cluster: Cluster) -> tuple[str, bool]:
    kinds, over = requests(), asyncio.Event()
    async with trial(cluster, kinds, learn=False) as tried:
        load = asyncio.create_task(tried.keep(kinds, STREAMS, over))
        try:
            await asyncio.sleep(BEFORE)
            engines = tried.watch.moments[-1].engines
            started, unix = time.monotonic(), time.time()
            await asyncio.to_thread(cluster.add_worker)
            await until(lambda: tried.watch.moments[-1].engines >= 2, START)
            ready = time.monotonic()
            await asyncio.sleep(AFTER)
            last = time.monotonic()
        finally:
            over.set()
        await load
    shown, held = verdict(cluster, tried.streams, Least(STREAMS))
    arrivals = [arrival for outcome in tried.streams.outcomes for arrival in outcome.arrivals]

    def rate(begin: float, end: float) -> str:
        return f"{sum(begin <= arrival < end for arrival in arrivals) / (end - begin):.0f}"

    working = tried.watch.first(unix, lambda m: sum(count > 0 for count in m.running.values()) == 2)
    rows: list[Sequence[object]] = [
        ["engines ready before", engines],
        ["s from the start of the node to its engine", f"{ready - started:.1f}"],
        ["s to the first requests on it", "never" if working is None else f"{working:.1f}"],
        ["tokens/s before", rate(started - BEFORE + 5, started)],
        ["tokens/s with it", rate(ready + 5, last)],
    ]
    return "\n".join([table(["", ""], rows), "", shown]), held and engines == 1 and working is not None
