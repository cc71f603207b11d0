"""What `wait_replicas` costs: calls of the pool whose replies wait until replicas have what they wrote.

A master and two replicas on this machine. Measured are round trips of the real class over TCP with its Python client,
and the processor time of the master and of both replicas in them. Each exchange commits one token to each of the
running sequences, whose events one gateway reads. The variants take turns.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from load.bench.parts.scheduling import p99
from load.chaos.sentinels import Sentinels
from load.options import Options
from load.report import table
from services.messages import Commit, Exchange, NewSequence, Room, Submission
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.requests import SamplingParams

WAITED_FOR = (0, 1, 2)
ROUNDS, CALLS = 5, 200  # of each variant, in turn; calls of each kind in a round
RUNNING = 32
_USED = re.compile(rb"used_cpu_(?:user|sys):([0-9.]+)")
SEAT, GATEWAY = "bench/0", "gateway"


def run(options: Options) -> str:
    with tempfile.TemporaryDirectory() as folder:
        servers = Sentinels(Path(folder), choose_server())
        servers.start()
        try:
            return asyncio.run(_report(servers))
        finally:
            servers.stop()


async def _report(servers: Sentinels) -> str:
    """The table: milliseconds of each kind of call, for each number of replicas that are waited for."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    spent: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for round in range(ROUNDS):
        for replicas in WAITED_FOR:
            pool = RequestPool(servers.url, f"bench-{round}-{replicas}", wait_replicas=replicas)
            await pool.connect()
            for name, calls in (("submit", _submits), ("exchange and read", _exchanges)):
                before = _spent(servers)
                times[name, replicas] += await calls(pool)
                after = _spent(servers)
                spent[name, replicas].append((after[0] - before[0], after[1] - before[1]))
            await pool.close()
    rows = []
    for (name, replicas), taken in times.items():
        master, others = (statistics.median(column) / CALLS for column in zip(*spent[name, replicas], strict=True))
        seconds = (statistics.median(taken), p99(taken), master, others)
        rows.append([name, replicas, *(f"{1e3 * value:.3f}" for value in seconds)])
    rows.sort(key=lambda row: (row[0] != "submit", row[1]))
    head = ["call", "replicas waited for", "median", "p99", "processor, master", "processor, both replicas"]
    return f"Milliseconds a call; {servers.binary}, {RUNNING} commits in an exchange.\n\n" + table(head, rows)


def _spent(servers: Sentinels) -> tuple[float, float]:
    """Processor seconds of the master and of the replicas so far."""
    master, *replicas = (_USED.findall(servers.ask(server, "INFO", "cpu")) for server in servers.servers)
    return sum(map(float, master)), sum(float(part) for used in replicas for part in used)


async def _submits(pool: RequestPool) -> list[float]:
    times = []
    for i in range(CALLS):
        sequence = NewSequence(f"r{i}/0", list(range(256)), SamplingParams(max_new_tokens=CALLS + 1))
        began = time.perf_counter()
        reply = await pool.submit(Submission(f"r{i}", GATEWAY, [sequence], background=True))
        times.append(time.perf_counter() - began)
        assert reply.refused is None, reply.refused
    return times


async def _exchanges(pool: RequestPool) -> list[float]:
    """The time from the begin of an exchange until the gateway has its events."""
    grant = await pool.acquire(SEAT, "bench", 60.0)
    reply = await pool.exchange(Exchange(SEAT, grant.epoch, 1, [], Room(RUNNING, RUNNING * 1024, 16)))
    ids = [claim.id for claim in reply.claims]
    await pool.listen(GATEWAY, dict.fromkeys(ids, 0))
    cursor, times = "0", []
    for step in range(CALLS):
        commits = [Commit(id, step, [step]) for id in ids]
        reading = asyncio.create_task(pool.read_events(GATEWAY, cursor, 5.0))
        began = time.perf_counter()
        await pool.exchange(Exchange(SEAT, grant.epoch, step + 2, commits, Room(0, 0, 16)))
        cursor, events = await reading
        times.append(time.perf_counter() - began)
        assert len(events) == len(ids), f"{len(events)} events for {len(ids)} commits"
    await pool.release(SEAT, grant.epoch)
    return times
