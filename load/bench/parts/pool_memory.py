"""What a request costs the pool's server in memory and in its file, by the length of its prompt and its answer.

`used_memory` of the server and the size of its append-only file before and after a number of equal requests: when they
wait, when they run and have all their tokens but the last, and when they have ended and can still be read. The bytes
that the pool itself counts, which `max_pool_bytes` bounds, are shown beside them.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import redis

from load.options import Options
from load.report import table
from services.messages import Commit, End, Exchange, NewSequence, Room, Submission
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server.binaries import ServerBinary, choose_server
from services.pool.server.pool_server import PoolServer
from services.requests import FinishReason, SamplingParams

REQUESTS = 500
LENGTHS = ((32, 32), (256, 256), (2_048, 512), (16_384, 512))  # tokens of prompt and answer
SEAT, LEASE = "bench/0", 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a server: in memory, in its file, and as the pool counts its requests."""

    memory: int
    file: int
    counted: int


def run(options: Options) -> str:
    return asyncio.run(report(choose_server(), REQUESTS, LENGTHS))


async def report(binary: ServerBinary, requests: int, lengths: tuple[tuple[int, int], ...]) -> str:
    """The table of all lengths, each with `requests` requests on a new server."""
    rows = []
    for prompt, answer in lengths:
        before, *sizes = await measure(binary, requests, prompt, answer)
        kilobytes = [(size.memory - before.memory) / requests / 1e3 for size in sizes]
        file = (sizes[-1].file - before.file) / requests / 1e3
        counted = sizes[1].counted / requests / 1e3
        rows.append([f"{prompt:,} in, {answer:,} out", *(f"{kb:.1f}" for kb in (*kilobytes, counted, file))])
    names = ["request", "waits", "runs", "has ended", "counted while it runs", "written to the file"]
    return f"kB for each of {requests} requests on {binary}.\n\n" + table(names, rows)


async def measure(binary: ServerBinary, requests: int, prompt: int, answer: int) -> list[Size]:
    """The sizes of a server without requests, and with `requests` that wait, that run and that have ended."""
    with tempfile.TemporaryDirectory() as name:
        server = PoolServer(binary, Path(name))
        url = await server.start()
        pool = RequestPool(url, "bench", Limits(requests, 8 << 30, 600.0))
        try:
            await pool.connect()
            sizes = [await _size(pool, url, Path(name))]
            for i in range(requests):
                sequence = NewSequence(f"r{i}/0", list(range(prompt)), SamplingParams(max_new_tokens=answer))
                reply = await pool.submit(Submission(f"r{i}", "gateway", [sequence], background=True))
                assert reply.refused is None, reply.refused
            sizes.append(await _size(pool, url, Path(name)))
            grant = await pool.acquire(SEAT, "bench", LEASE)
            claimed = await pool.exchange(Exchange(SEAT, grant.epoch, 1, [], Room(requests, 1 << 30, 16)))
            ids = [claim.id for claim in claimed.claims]
            assert len(ids) == requests, f"{len(ids)} claims of {requests}"
            commits = [Commit(id, 0, list(range(answer - 1))) for id in ids]
            await pool.exchange(Exchange(SEAT, grant.epoch, 2, commits, Room(0, 0, 16)))
            sizes.append(await _size(pool, url, Path(name)))
            ends = [Commit(id, answer - 1, [0], end=End(FinishReason.LENGTH)) for id in ids]
            await pool.exchange(Exchange(SEAT, grant.epoch, 3, ends, Room(0, 0, 16)))
            sizes.append(await _size(pool, url, Path(name)))
            return sizes
        finally:
            await pool.close()
            await server.stop()


async def _size(pool: RequestPool, url: str, folder: Path) -> Size:
    with redis.Redis.from_url(url) as client:
        memory = int(client.info("memory")["used_memory"])
    return Size(memory, _bytes_in(folder), (await pool.overview()).bytes)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.aof*"))
