"""The live feed: processor time of gateway, scheduler and Redis with nobody, one and ten watching."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp

from load.bench.figures import Figures, Table, rounds_of
from load.bench.live_processes import gateway, process, scheduler
from load.options import Options, model_folder
from load.processes import processor_seconds
from load.trace import Request
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

ROUNDS = 2
STREAMS, PROMPT = 32, 32
PACE = 0.01  # seconds of an iteration
SETTLE = 4.0  # seconds until a measurement begins: longer than schedulers publish after the last watcher has gone
SECONDS = 8.0  # of a measurement
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
    return asyncio.run(_measure(model_folder(options), settle, seconds))


async def _measure(folder: Path, settle: float, seconds: float) -> Figures:
    found: dict[str, Table] = {IDLE: {}, BUSY: {}}
    with tempfile.TemporaryDirectory() as data:
        server = PoolServer(choose_server(), Path(data))
        url = await server.start()
        for recorded in (False, True):
            with (
                process(gateway, url, folder, Path(data) / "files") as (gateway_pid, address),
                process(scheduler, url, folder, PACE, recorded) as (scheduler_pid, _),
            ):
                pids = {"gateway": gateway_pid, "scheduler": scheduler_pid, "Redis": server.pid}
                async with _session(address) as session:
                    while not (await session.get("/ready")).ok:  # noqa: ASYNC110 - there is no event to wait for
                        await asyncio.sleep(0.1)
                    for title in (IDLE, BUSY):
                        for count in WATCHERS if recorded else (0,):
                            tokens = round(2 * (settle + seconds) / PACE) if title == BUSY else 0
                            async with _clients(session, count, tokens):
                                await asyncio.sleep(settle)
                                row = f"{count} watching" if recorded else "-"
                                found[title][row] = await _spent(pids, seconds)
        await server.stop()
    return found


def _session(address: str) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


@asynccontextmanager
async def _clients(session: aiohttp.ClientSession, watchers: int, tokens: int) -> AsyncIterator[None]:
    """So many readers of the feed, and streams of so many tokens, until they are cut."""
    body = Request([5] * PROMPT, tokens).http()
    calls = [session.get("/ui/feed") for _ in range(watchers)]
    calls += [session.post(body.path, json=body.body) for _ in range(STREAMS) if tokens]
    reading = [asyncio.create_task(_read(call)) for call in calls]
    try:
        yield
    finally:
        for task in reading:
            assert not task.done(), f"it ended early: {task}"
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _read(call: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> None:
    async with call as response:
        response.raise_for_status()
        async for _ in response.content.iter_any():
            pass


async def _spent(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    before, began = processor_seconds(pids.values()), time.perf_counter()
    await asyncio.sleep(seconds)
    after, took = processor_seconds(pids.values()), time.perf_counter() - began
    return {name: 1000 * (after[pid] - before[pid]) / took for name, pid in pids.items()}
