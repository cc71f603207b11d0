"""The processes of the parts `live` and `shards`: a gateway, and a scheduler whose engine keeps a pace."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn

from actors.replica import limits_of
from gateway.app import create_app, prepare_process
from gateway.model import ServedModel
from services.engine.null import NullEngine
from services.engine.settings import EngineSettings
from services.live.publisher import FramePublisher
from services.live.recorder import Recorder
from services.loop.clock import RealClock
from services.loop.engine_loop import EngineLoop
from services.loop.iteration_cost import IterationCost
from services.loop.local_engine import LocalSeat
from services.messages import Iteration, IterationResult
from services.metrics import Counters
from services.models import ModelInfo
from services.pool.pool import RequestPool
from services.pool.shards import PoolShard, parse_shards
from services.scheduling import Knobs, Scheduler
from services.settings.settings import Settings
from services.text import TextTables, Tokenizer

POOL, SEAT, LEASE = "live", "bench/0", 60.0
Body = Callable[..., Coroutine[Any, Any, None]]


@contextmanager
def process(body: Body, *args: Any) -> Iterator[tuple[int, Any]]:
    """Run `body(connection, *args)` in a process of its own; yields its pid and the first object that it sends. The
    process ends when its connection is closed."""
    own, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_main, args=(body, other, *args), daemon=True)
    child.start()
    other.close()
    try:
        assert child.pid is not None
        yield child.pid, own.recv()
    finally:
        own.close()
        child.join()


def _main(body: Body, connection: Connection, *args: Any) -> None:
    asyncio.run(body(connection, *args))


async def closed(connection: Connection) -> None:
    """Wait until the other end of the connection is closed."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(connection.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(connection.fileno())


async def gateway(connection: Connection, redis_url: str, folder: Path, files: Path) -> None:
    """Sends its URL. `redis_url` may name several shards."""
    settings, info = Settings(files_dir=str(files)), ModelInfo.load(folder)
    limits = limits_of(settings)
    pools = [PoolShard(RequestPool(shard.url, POOL, limits), shard.number) for shard in parse_shards(redis_url)]
    app = create_app(pools, ServedModel("bench", Tokenizer.load(folder), info, 1), settings)
    prepare_process()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listening]))
    connection.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    await closed(connection)
    server.should_exit = True
    await serving


class PacedEngine:
    """The null engine, whose iterations take `seconds` each, in which the process does other work."""

    def __init__(self, engine: NullEngine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self._free = 0.0  # when the last iteration ends

    def start(self, iteration: Iteration) -> Awaitable[IterationResult]:
        return asyncio.ensure_future(self._run(iteration))

    async def _run(self, iteration: Iteration) -> IterationResult:
        now = time.perf_counter()
        self._free = max(self._free, now) + self._seconds
        await asyncio.sleep(self._free - now)
        return self._engine.run(iteration)


async def scheduler(
    connection: Connection, redis_url: str, folder: Path, seconds: float, recorded: bool, seat: str = SEAT
) -> None:
    """`recorded`: with a recorder and its publisher, as a served one. Sends None when its loop runs."""
    pool = RequestPool(redis_url, POOL)
    epoch = (await pool.acquire(seat, "bench", LEASE)).epoch
    null = NullEngine.load(folder, EngineSettings())
    null.reset(epoch)
    knobs = Knobs(max_batch_size=256)
    made = Scheduler(epoch=epoch, figures=null.figures, knobs=knobs, text=TextTables.load(folder))
    recorder = Recorder(seat, epoch, made) if recorded else None
    loop = EngineLoop(
        pool,
        made,
        PacedEngine(null, seconds),
        RealClock(),
        LocalSeat(seat, epoch),
        LEASE,
        null.figures,
        Counters(),
        IterationCost(),
        observers=[recorder] if recorder else [],
    )
    tasks = [asyncio.create_task(loop.run())]
    if recorder:
        tasks.append(asyncio.create_task(FramePublisher(pool.broadcast(), recorder).run()))
    connection.send(None)
    await closed(connection)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await pool.release(seat, epoch)
    await pool.close()
