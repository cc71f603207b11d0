"""The link of a node with an engine is cut for 5 s and for 60 s, under open streams."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise

from load.chaos.checker import Least
from load.nodes.cluster import Cluster
from load.nodes.machine import Machine
from load.nodes.trial import NULL, NodeOptions, Trial, requests, trial, verdict
from load.report import table
from load.server import until

CUTS = (5.0, 60.0)  # seconds
STREAMS = 12
SETTLE = 20.0  # seconds between a cut and the next
BACK = 120.0  # seconds within which both engines must be ready again
SETTINGS = NULL | {"engines": 2, "gateways": 2}


def run(options: NodeOptions) -> tuple[str, bool]:
    with Cluster(options.folder, SETTINGS) as cluster:
        for _ in range(2):
            cluster.add_worker()
        cluster.deploy()
        return asyncio.run(_run(cluster))


async def _run(cluster: Cluster) -> tuple[str, bool]:
    kinds, over = requests(), asyncio.Event()
    rows = []
    async with trial(cluster, kinds, learn=False) as tried:
        load = asyncio.create_task(tried.keep(kinds, STREAMS, over))
        try:
            await _until_ready(tried, 2)
            for seconds in CUTS:
                await asyncio.sleep(SETTLE)
                rows.append(await _cut(tried, seconds))
        finally:
            over.set()
        await load
    shown, held = verdict(cluster, tried.streams, Least(STREAMS, faults=0))
    head = ["link cut, s", "streams open", "engines of the node taken from it after, s", "both ready again after, s",
            "longest silence of a stream, s", "streams that connected again", "owners that were told so"]  # fmt: skip
    return "\n".join([table(head, rows), "", shown]), held


async def _cut(tried: Trial, seconds: float) -> list[object]:
    """Cut the link of a worker whose scheduler owns a seat; returns the row of the table when both engines are back."""
    before, machine = tried.watch.moments[-1], _victim(tried)
    lost, reconnects, hit = _lost_seats(machine), _reconnects(tried), tried.streams.open
    seats = [seat for seat, address in before.owners.items() if address == machine.address]
    at, began = time.time(), time.monotonic()
    machine.cut()
    try:
        await asyncio.sleep(seconds)
    finally:
        machine.mend()
    await _until_ready(tried, 2)
    back = time.time() - at
    await asyncio.sleep(SETTLE)
    taken = tried.watch.first(at, lambda m: all(m.owners.get(seat) != machine.address for seat in seats))
    silence = max(
        (end - max(begin, began) for o in tried.streams.outcomes for begin, end in pairwise(o.arrivals) if end > began),
        default=0.0,
    )
    return [
        f"{seconds:.0f}", hit, "" if taken is None else f"{taken:.1f}", f"{back:.1f}", f"{silence:.1f}",
        _reconnects(tried) - reconnects, _lost_seats(machine) - lost,
    ]  # fmt: skip


def _victim(tried: Trial) -> Machine:
    owners = set(tried.watch.moments[-1].owners.values())
    return next(worker for worker in tried.cluster.workers if worker.address in owners)


def _reconnects(tried: Trial) -> int:
    return sum(outcome.reconnects > 0 for outcome in tried.streams.outcomes)


def _lost_seats(machine: Machine) -> int:
    """How many owners on the machine have heard from the pool that the seat is not theirs any more."""
    return len(re.findall(r"lost seat \S+: ", machine.logs()))


async def _until_ready(tried: Trial, engines: int) -> None:
    await until(lambda: bool(tried.watch.moments) and tried.watch.moments[-1].engines == engines, BACK)
