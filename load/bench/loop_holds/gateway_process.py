"""A gateway in a process of its own, which reports how long its event loop was blocked.

`python -m load.bench.loop_holds.gateway_process REDIS_URL POOL MODEL_FOLDER FILES_FOLDER` prints its URL. For each line
on its standard input it prints a line of JSON: the longest hold since the last one, in seconds, and its resident
memory, in bytes. It ends when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path

import uvicorn

from actors.replica import limits_of
from gateway.app import create_app, prepare_process
from gateway.model import ServedModel
from services.models import ModelInfo
from services.pool.pool import RequestPool
from services.pool.shards import PoolShard
from services.settings.settings import Settings
from services.text import Tokenizer

TICK = 0.001  # seconds


class Meter:
    """A task that sleeps repeatedly: the time that it oversleeps is a hold."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before - TICK)
            before = now

    def take(self) -> dict[str, float]:
        longest, self.longest = self.longest, 0.0
        return {"longest": longest, "memory": resident()}


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def serve(redis_url: str, pool_name: str, model_folder: Path, files: Path) -> None:
    settings = Settings(files_dir=str(files))
    pool, info = RequestPool(redis_url, pool_name, limits_of(settings)), ModelInfo.load(model_folder)
    app = create_app([PoolShard(pool)], ServedModel("bench", Tokenizer.load(model_folder), info, 1), settings)
    prepare_process()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listening = socket.create_server(("127.0.0.1", 0))
    meter = Meter()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve([listening]))
        measuring = group.create_task(meter.run())
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(meter.take()), flush=True)
        server.should_exit = True
        await serving
        measuring.cancel()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
