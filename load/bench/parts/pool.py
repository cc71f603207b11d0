"""What the pool costs: `submit` and `exchange` on each server that is installed, with 10,000 sequences waiting.

Measured are round trips of the real class over a Unix socket, with its Python client, and the processor time of the
server in them, which bounds the load of one server. Each exchange commits one token, or eight, to each of `n` running
sequences and offers no room. The sequences are spread over the gateways: each of these has an entry of each exchange in
its stream, and reads its stream as a gateway under load does, at most every 10 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import redis

from gateway.pool_client.event_reader import PAUSE
from load.bench.parts.scheduling import p99
from load.options import Options
from load.report import table
from services.messages import Commit, Exchange, NewSequence, Room, Submission
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server.binaries import ServerBinary, find_servers
from services.pool.server.pool_server import PoolServer
from services.requests import SamplingParams

WAITING = 10_000
RUNNING = (1, 32, 256)
GATEWAYS = (0, 1, 2, 4)
SHARED = (1, 64)  # running sequences of the exchanges with several gateways
LATE = 8  # tokens of each sequence, if an exchange comes after several iterations
SEAT = "bench/0"
GATEWAY = "gateway"  # that submits all
PROMPT = list(range(256))
LEASE = 60.0


@dataclass(frozen=True, slots=True)
class Calls:
    """The seconds of each call, and the mean processor seconds of the server in one."""

    times: list[float]
    server: float


def run(options: Options) -> str:
    return f"Milliseconds a call, {WAITING:,} sequences waiting.\n\n" + asyncio.run(report(WAITING, rounds=300))


async def report(waiting: int, rounds: int) -> str:
    """The table of all servers, with `rounds` exchanges each."""
    rows = []
    for binary in find_servers():
        rows += [
            [
                str(binary),
                name,
                *(f"{s * 1e3:.3f}" for s in (statistics.median(calls.times), p99(calls.times), calls.server)),
            ]
            for name, calls in (await measure(binary, waiting, rounds)).items()
        ]
    return table(["server", "call", "median", "p99", "in the server"], rows)


async def measure(binary: ServerBinary, waiting: int, rounds: int) -> dict[str, Calls]:
    """The times of each kind of call on one server."""
    with tempfile.TemporaryDirectory() as folder:
        server = PoolServer(binary, Path(folder))
        url = await server.start()
        pool = RequestPool(url, "bench", Limits(waiting + max(RUNNING), 1 << 30, 600.0))
        try:
            await pool.connect()
            calls = {"submit": await _submit(pool, url, waiting + max(RUNNING))}
            for running in SHARED:
                for count in GATEWAYS:
                    name = f"exchange, {running} commits, {count} gateways"
                    calls[name] = await _published(pool, url, running, rounds, count)
            for running in RUNNING:
                calls[f"exchange, {running} commits"] = await _exchange(pool, url, running, rounds)
            late = await _exchange(pool, url, running, rounds // LATE, LATE)
            calls[f"exchange, {running} commits of {LATE} tokens"] = late
            return calls
        finally:
            await pool.close()
            await server.stop()


def _processor_seconds(url: str) -> float:
    """Processor seconds of the server's process so far."""
    with redis.Redis.from_url(url) as client:
        cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


async def _submit(pool: RequestPool, url: str, count: int) -> Calls:
    times = []
    before = _processor_seconds(url)
    for i in range(count):
        sequence = NewSequence(f"r{i}/0", PROMPT, SamplingParams(max_new_tokens=1024))
        start = time.perf_counter()
        reply = await pool.submit(Submission(f"r{i}", GATEWAY, [sequence], background=True))
        times.append(time.perf_counter() - start)
        assert reply.refused is None, reply.refused
    return Calls(times, (_processor_seconds(url) - before) / count)


async def _published(pool: RequestPool, url: str, running: int, rounds: int, count: int) -> Calls:
    """Exchanges whose sequences `count` gateways follow and read, each its share of them."""
    await pool.unregister(GATEWAY)
    gateways = [f"gateway {running} {i}" for i in range(count)]
    reading = [asyncio.create_task(_read(pool, gateway)) for gateway in gateways]
    try:
        return await _exchange(pool, url, running, rounds, gateways=gateways)
    finally:
        for task in reading:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for gateway in gateways:
            await pool.unregister(gateway)


async def _read(pool: RequestPool, gateway: str) -> None:
    cursor = "0"
    while True:
        cursor, _ = await pool.read_events(gateway, cursor, 1.0)
        await asyncio.sleep(PAUSE)


async def _exchange(
    pool: RequestPool, url: str, running: int, rounds: int, tokens: int = 1, gateways: Iterable[str] = (GATEWAY,)
) -> Calls:
    gateways = list(gateways)
    grant = await pool.acquire(SEAT, f"bench {running}", LEASE)
    assert grant.granted, "the seat was released"
    epoch = grant.epoch
    reply = await pool.exchange(Exchange(SEAT, epoch, 1, [], Room(running, running * 1024, 16)))
    have = {claim.id: len(claim.output) for claim in reply.claims}
    assert len(have) == running, f"{len(have)} claims of {running}"
    for i, gateway in enumerate(gateways):
        await pool.listen(gateway, dict.fromkeys(list(have)[i :: len(gateways)], 0))
        await pool.heartbeat(gateway, 0, {})
    times = []
    before = _processor_seconds(url)
    for step in range(rounds):
        commits = [Commit(id, index + step * tokens, [step] * tokens) for id, index in have.items()]
        exchange = Exchange(SEAT, epoch, step + 2, commits, Room(0, 0, 16), counters={"tokens": float(running)})
        start = time.perf_counter()
        await pool.exchange(exchange)
        times.append(time.perf_counter() - start)
        if step % 50 == 0:  # keeps the gateway alive, so that events are written for it
            for gateway in gateways:
                await pool.heartbeat(gateway, step + 1, {})
    server = (_processor_seconds(url) - before) / rounds
    await pool.release(SEAT, epoch)
    return Calls(times, server)
