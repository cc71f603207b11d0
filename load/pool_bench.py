"""What the pool costs: `python -m load.pool_bench` prints the time of `submit` and `exchange` on each server found.

Round trips of the real class over a unix socket, Python client included, 10,000 sequences waiting. Each exchange
commits one token to each of `n` running sequences and offers no room.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from services.messages import Commit, Exchange, NewSequence, Room, Submission
from services.pool.binaries import find_servers
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server import PoolServer
from services.requests import SamplingParams

SEAT = "bench/0"
PROMPT = list(range(256))
LEASE = 60.0


def _percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    median, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"median {median * 1e3:6.3f} ms   p99 {p99 * 1e3:6.3f} ms"


async def _submit(pool: RequestPool, first: int, count: int) -> list[float]:
    times = []
    for i in range(first, first + count):
        sequence = NewSequence(f"r{i}/0", PROMPT, SamplingParams(max_new_tokens=1024))
        start = time.perf_counter()
        reply = await pool.submit(Submission(f"r{i}", "gateway", [sequence]))
        times.append(time.perf_counter() - start)
        assert reply.refused is None
    return times


async def _exchanges(pool: RequestPool, running: int, rounds: int) -> list[float]:
    epoch = await pool.acquire(SEAT, f"bench {running}", LEASE)
    assert epoch is not None
    blocks = running * 1024
    reply = await pool.exchange(Exchange(SEAT, epoch, 1, [], Room(running, blocks, 16)))
    ids = [claim.id for claim in reply.claims]
    assert len(ids) == running
    start_index = {claim.id: len(claim.output) for claim in reply.claims}
    times = []
    for step in range(rounds):
        commits = [Commit(id, start_index[id] + step, [step]) for id in ids]
        exchange = Exchange(SEAT, epoch, step + 2, commits, Room(0, 0, 16), counters={"tokens": float(running)})
        start = time.perf_counter()
        await pool.exchange(exchange)
        times.append(time.perf_counter() - start)
        if step % 50 == 0:
            await pool.heartbeat("gateway", step + running * rounds, {})
    await pool.release(SEAT, epoch)
    return times


async def bench(waiting: int, rounds: int) -> None:
    for binary in find_servers():
        with tempfile.TemporaryDirectory() as folder:
            server = PoolServer(binary, Path(folder))
            pool = RequestPool(await server.start(), "bench", Limits(max_waiting=waiting + 256, max_bytes=1 << 30))
            try:
                await pool.connect()
                print(f"{binary}, {waiting} waiting")
                print(f"  submit                 {_percentiles(await _submit(pool, 0, waiting + 256))}")
                for running in (1, 32, 256):
                    times = await _exchanges(pool, running, rounds)
                    print(f"  exchange {running:3d} commits   {_percentiles(times)}", flush=True)
            finally:
                await pool.close()
                await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    asyncio.run(bench(arguments.waiting, arguments.rounds))


if __name__ == "__main__":
    main()
