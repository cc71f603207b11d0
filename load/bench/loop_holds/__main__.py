"""`python -m load.bench.loop_holds`: how long the worst bodies of each route block a gateway's event loop.

The gateway runs in a process of its own, on a pool with the null engine. Two copies of each body are sent at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from load.bench.loop_holds.bodies import Attack, attacks, send_batch
from load.options import Options, add_model, model_folder
from load.report import machine, table
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.loop.clock import RealClock
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalEngine, LocalSeat
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer
from services.scheduling import Knobs, Scheduler
from services.text import TextTables

POOL, SEAT, LEASE = "holds", "bench/0", 60.0
AT_ONCE = 2  # copies of each body
PATIENCE = 120.0  # seconds for an answer
FILES = "/v1/files, /v1/batches"
AFTERWARDS = 3.0  # seconds until the remaining memory is read


class Gateway:
    """The gateway's process: its URL, and what it reports."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    async def measure(self) -> tuple[float, float]:
        """The longest hold since the last call in ms, and the memory in MB."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        report = json.loads(await self._process.stdout.readline())
        return 1000 * report["longest"], report["memory"] / (1 << 20)


@asynccontextmanager
async def gateway(redis_url: str, model: Path, files: Path) -> AsyncIterator[Gateway]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "load.bench.loop_holds.gateway_process", redis_url, POOL, str(model), str(files)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Gateway(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def engine(redis_url: str, model: Path) -> AsyncIterator[None]:
    """A scheduler with the null engine."""
    pool = RequestPool(redis_url, POOL)
    epoch = (await pool.acquire(SEAT, "bench", LEASE)).epoch
    null = NullEngine.load(model, EngineSettings())
    null.reset(epoch)
    text = TextTables.load(model)
    scheduler = Scheduler(epoch=epoch, figures=null.figures, knobs=Knobs(max_batch_size=256), text=text)
    local, seat = LocalEngine(null), LocalSeat(SEAT, epoch)
    loop = EngineLoop(pool, scheduler, local, RealClock(), seat, LEASE, null.figures, Counters(), IterationCost())
    running = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        loop.stop()
        await running
        local.close()
        await pool.close()


async def holds(model: Path, chosen: str) -> str:
    """The table of the bodies whose name or path contains `chosen`."""
    with tempfile.TemporaryDirectory() as folder:
        server = PoolServer(choose_server(), Path(folder))
        url = await server.start()
        async with (
            engine(url, model),
            gateway(url, model, Path(folder) / "files") as one,
            httpx.AsyncClient(base_url=one.url, timeout=PATIENCE) as client,
        ):
            rows = [row async for row in _rows(one, client, chosen)]
        await server.stop()
    return table(["route", "body", "answers", "longest hold, ms", "memory then, MB"], rows)


async def _rows(one: Gateway, client: httpx.AsyncClient, chosen: str) -> AsyncIterator[list[str]]:
    async with asyncio.timeout(PATIENCE):
        while not (await client.get("/ready")).is_success:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
    await one.measure()
    yield await _idle(one)
    for attack in attacks():
        if chosen in f"{attack.path} {attack.name}":
            yield await _attacked(one, client, attack)
    if chosen in FILES:
        yield [FILES, "long lines", await send_batch(client), *await _measured(one)]
    yield await _idle(one)


async def _idle(one: Gateway) -> list[str]:
    await asyncio.sleep(AFTERWARDS)
    return ["", "nothing", "", *await _measured(one)]


async def _measured(one: Gateway) -> list[str]:
    hold, memory = await one.measure()
    return [f"{hold:.0f}", f"{memory:.0f}"]


async def _attacked(one: Gateway, client: httpx.AsyncClient, attack: Attack) -> list[str]:
    headers = {"content-type": "application/json"}
    calls = [client.post(attack.path, content=attack.body, headers=headers) for _ in range(AT_ONCE)]
    answers = await asyncio.gather(*calls)
    statuses = ", ".join(sorted({str(answer.status_code) for answer in answers}))
    row = [attack.path, attack.name, statuses, *await _measured(one)]
    print(*row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m load.bench.loop_holds", description="What holds a gateway's event loop."
    )
    add_model(parser)
    parser.add_argument("--only", default="", help="only bodies whose path or name contains this")
    given = parser.parse_args()
    folder = model_folder(Options(given.model, cache_dir=given.cache_dir))
    print(f"{machine()}; each body {AT_ONCE} times at once\n\n{asyncio.run(holds(folder, given.only))}")


if __name__ == "__main__":
    main()
