"""What the pool costs: `submit` and `exchange` on each server found, 10,000 sequences waiting.

Round trips of the real class over a unix socket, Python client included. Each exchange commits one token to each of
`n` running sequences and offers no room.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from load.benches.scheduling import p99
from load.markdown import table
from load.options import Options
from services.messages import Commit, Exchange, NewSequence, Room, Submission
from services.pool.binaries import ServerBinary, find_servers
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server import PoolServer
from services.requests import SamplingParams

HELP = "submit and exchange on each Redis and Valkey found, 10,000 waiting"
WAITING = 10_000
RUNNING = (1, 32, 256)
SEAT = "bench/0"
PROMPT = list(range(256))
LEASE = 60.0


def run(options: Options) -> str:
    return f"Milliseconds a call, {WAITING:,} sequences waiting.\n\n" + asyncio.run(report(WAITING, rounds=300))


async def report(waiting: int, rounds: int) -> str:
    """The table over all servers; `rounds` exchanges each."""
    rows = []
    for binary in find_servers():
        rows += [
            [str(binary), call, f"{statistics.median(seconds) * 1e3:.3f}", f"{p99(seconds) * 1e3:.3f}"]
            for call, seconds in (await measure(binary, waiting, rounds)).items()
        ]
    return table(["server", "call", "median", "p99"], rows)


async def measure(binary: ServerBinary, waiting: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call on one server."""
    with tempfile.TemporaryDirectory() as folder:
        server = PoolServer(binary, Path(folder))
        pool = RequestPool(await server.start(), "bench", Limits(waiting + max(RUNNING), 1 << 30, 600.0))
        try:
            await pool.connect()
            times = {"submit": await _submit(pool, waiting + max(RUNNING))}
            for running in RUNNING:
                times[f"exchange, {running} commits"] = await _exchange(pool, running, rounds)
            return times
        finally:
            await pool.close()
            await server.stop()


async def _submit(pool: RequestPool, count: int) -> list[float]:
    times = []
    for i in range(count):
        sequence = NewSequence(f"r{i}/0", PROMPT, SamplingParams(max_new_tokens=1024))
        start = time.perf_counter()
        reply = await pool.submit(Submission(f"r{i}", "gateway", [sequence]))
        times.append(time.perf_counter() - start)
        assert reply.refused is None, reply.refused
    return times


async def _exchange(pool: RequestPool, running: int, rounds: int) -> list[float]:
    grant = await pool.acquire(SEAT, f"bench {running}", LEASE)
    assert grant.granted, "the seat was released"
    epoch = grant.epoch
    reply = await pool.exchange(Exchange(SEAT, epoch, 1, [], Room(running, running * 1024, 16)))
    have = {claim.id: len(claim.output) for claim in reply.claims}
    assert len(have) == running, f"{len(have)} claims of {running}"
    times = []
    for step in range(rounds):
        commits = [Commit(id, index + step, [step]) for id, index in have.items()]
        exchange = Exchange(SEAT, epoch, step + 2, commits, Room(0, 0, 16), counters={"tokens": float(running)})
        start = time.perf_counter()
        await pool.exchange(exchange)
        times.append(time.perf_counter() - start)
        if step % 50 == 0:  # the gateway lives, so that events are written for it
            await pool.heartbeat("gateway", step + running * rounds, {})
    await pool.release(SEAT, epoch)
    return times
