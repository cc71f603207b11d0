"""The live feed: processor time of gateway, scheduler and Redis with nobody, one and ten watching."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from load.bench.figures import Figures, Table, rounds_of
from load.bench.live_processes import gateway, process, scheduler, streams, watchers
from load.options import Options, model_folder
from load.processes import processor_seconds
from load.trace import Request
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

ROUNDS = 3
STREAMS, PROMPT = 32, 32
PACE = 0.01  # seconds of an iteration
SETTLE = 4.0  # seconds until a measurement begins: longer than schedulers publish after the last watcher has gone
SECONDS = 10.0  # of a measurement
WATCHERS = (0, 1, 10)

BUSY, IDLE = f"{STREAMS} streams at {1 / PACE:.0f} iterations a second", "No stream"
ABOUT = (
    "Milliseconds of processor time in a second, by process. A gateway, a scheduler with an engine whose iterations "
    f"take {PACE * 1e3:.0f} ms and no processor time, and the pool's server, each for {SECONDS:.0f} s. `-`: a "
    "scheduler without a recorder."
)


def run(options: Options) -> str:
    return rounds_of(lambda options: measure(options, SETTLE, SECONDS), options, ABOUT, ROUNDS)


def measure(options: Options, settle: float, seconds: float) -> Figures:
    """Measure each case for so many seconds, after `settle` seconds."""
    folder = model_folder(options)
    found: dict[str, Table] = {IDLE: {}, BUSY: {}}
    with tempfile.TemporaryDirectory() as data, asyncio.Runner() as runner:
        server = PoolServer(choose_server(), Path(data))
        url = runner.run(server.start())
        for recorded in (False, True):
            with (
                process(gateway, url, folder, Path(data) / "files") as (gateway_pid, address),
                process(scheduler, url, folder, PACE, recorded) as (scheduler_pid, _),
            ):
                pids = {"gateway": gateway_pid, "scheduler": scheduler_pid, "Redis": server.pid}
                _until_ready(address)
                for title in (IDLE, BUSY):
                    for count in WATCHERS if recorded else (0,):
                        row = f"{count} watching" if recorded else "-"
                        with _load(address, count, title == BUSY, settle + seconds):
                            time.sleep(settle)
                            found[title][row] = _spent(pids, seconds)
        runner.run(server.stop())
    return found


def _until_ready(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60.0) as client:
        while not client.get("/ready").is_success:
            time.sleep(0.1)


@contextmanager
def _load(address: str, count: int, busy: bool, seconds: float) -> Iterator[None]:
    with ExitStack() as stack:
        if count:
            stack.enter_context(process(watchers, address, count))
        if busy:
            stack.enter_context(process(streams, address, [Request([5] * PROMPT, round(2 * seconds / PACE))] * STREAMS))
        yield


def _spent(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    before, began = processor_seconds(pids.values()), time.perf_counter()
    time.sleep(seconds)
    after, took = processor_seconds(pids.values()), time.perf_counter() - began
    return {name: 1000 * (after[pid] - before[pid]) / took for name, pid in pids.items()}
