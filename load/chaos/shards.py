"""`python -m load.chaos.shards`: one of several shards' servers is killed or stopped every few seconds, under load.

The servers sync each write before they reply. Streams of the other shards must go on, and no token may be lost. The
history checker reads the files of all servers: each with what the clients of that shard's requests saw. Ends with
status 1 if a rule is broken, if too little happened, or if the checker misses a planted violation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from load.chaos import history
from load.chaos.aof import read_transactions
from load.chaos.checker import Circumstances, Least, Verdict, check
from load.chaos.history import Delivery, End, Record
from load.chaos.planted import PLANTS, missed_plants
from load.chaos.report import leave, requests_table
from load.chaos.run import IDLE, PATIENCE, SHOWN
from load.chaos.site import SCHEDULER, keep_history
from load.chaos.streams import Outcome, Streams
from load.chaos.workload import requests
from load.report import machine, table
from load.server import OrcaServer, pool_servers, until, urls_of
from services.client.streaming import open_session
from services.pool.server.pool_server import PoolServer
from services.pool.shards import shard_of

NEVER = 49_000  # a token id that no answer contains
FAULTS = ("killed", "stopped")


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to the server of a shard, from and to when (`time.monotonic`)."""

    shard: int
    what: str
    began: float
    ended: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.chaos.shards", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long streams are started")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between faults")
    parser.add_argument("--outage", type=float, default=8.0, help="seconds for which a server is stopped")
    parser.add_argument("--streams", type=int, default=16, help="streams open at any time")
    parser.add_argument("--shards", type=int, default=2, help="each with a server and an engine")
    parser.add_argument("--length", type=int, default=40, help="output tokens of a usual request")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--model", default="default", help="as `orca serve --model`")
    given = parser.parse_args()
    print(f"Measured on {machine()}.\n", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="orca-chaos-"))
    held = asyncio.run(run(folder, given))
    leave(folder, held)


async def run(folder: Path, given: argparse.Namespace) -> bool:
    """Run and print the tables; returns whether all rules held in every shard."""
    data, draw, seen = folder / "data", random.Random(given.seed), dict[int, float]()
    data.mkdir()
    flags = ["--model", given.model, "--dtype", "float32", "--engines", str(given.shards), "--keep-ended", "3600"]
    async with pool_servers(folder, given.shards, "strict") as servers:
        for server in servers:
            keep_history(server.data_dir)
        orca = OrcaServer(data, *flags, "--redis-url", urls_of(servers))
        try:
            await asyncio.to_thread(orca.__enter__)
            async with open_session(orca.url) as session:
                with history.Recorder(folder / "clients.jsonl", time.time) as recorder:
                    streams = Streams(session, recorder, PATIENCE)
                    kinds = requests(given.length, NEVER)
                    await streams.learn(kinds)
                    watching = asyncio.create_task(_watch(orca, seen))
                    over = asyncio.Event()
                    load = asyncio.create_task(streams.keep(kinds, given.streams, over))
                    faults = await _hurt(servers, streams, given, draw)
                    over.set()
                    await load
            await asyncio.to_thread(orca.until_idle, IDLE)  # what is left then is a violation
            watching.cancel()
        finally:
            await asyncio.to_thread(orca.__exit__)
    records = list(history.read(folder / "clients.jsonl"))
    print(faults_table(faults, streams.outcomes, shards_of(records)) + "\n")
    found = [_judge(server, shard, records, streams.outcomes, seen, draw) for shard, server in enumerate(servers)]
    return all(found)


async def _hurt(
    servers: Sequence[PoolServer], streams: Streams, given: argparse.Namespace, draw: random.Random
) -> list[Fault]:
    """Kill and stop servers in turn, each while at least half of the streams are open."""
    faults: list[Fault] = []
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        await asyncio.sleep(given.every / 2)
        await until(lambda: streams.open >= (given.streams + 1) // 2, PATIENCE)
        shard, what, began = draw.randrange(len(servers)), FAULTS[len(faults) % 2], time.monotonic()
        print(f"shard {shard}: {what} under {streams.open} streams", file=sys.stderr, flush=True)
        if what == "killed":
            os.kill(servers[shard].pid, signal.SIGKILL)
        else:
            os.kill(stopped := servers[shard].pid, signal.SIGSTOP)
            await asyncio.sleep(given.outage)
            os.kill(stopped, signal.SIGCONT)
        faults.append(Fault(shard, what, began, time.monotonic()))
        await asyncio.sleep(given.every / 2)
    return faults


async def _watch(orca: OrcaServer, seen: dict[int, float]) -> None:
    """Record in `seen` when each scheduler process was last seen alive, until cancelled."""
    while True:
        now = time.time()
        seen |= dict.fromkeys(await asyncio.to_thread(orca.pids, SCHEDULER), now)
        await asyncio.sleep(0.25)


def shards_of(records: Sequence[Record]) -> dict[int, int]:
    """The shard of each request of a client that was accepted."""
    return {record.request: shard_of(record.pool_id) for record in records if isinstance(record, Delivery | End)}


def _judge(
    server: PoolServer,
    shard: int,
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    seen: dict[int, float],
    draw: random.Random,
) -> bool:
    """Check the history of a shard, print what became of its requests, and return whether all rules held."""
    of = shards_of(records)
    own = [record for record in records if of.get(record.request, 0) == shard]
    transactions = list(read_transactions(server.data_dir))
    verdict = check(own, transactions, Least(10, 100), Circumstances(seen=seen))
    mine = [outcome for outcome in outcomes if of.get(outcome.number, 0) == shard]
    unexpected = [outcome for outcome in mine if outcome.error]
    print(f"Shard {shard}:\n\n{requests_table(mine, verdict, unexpected, [])}\n")
    wrong = _complaints(verdict, mine) + missed_plants(verdict, own, transactions, draw)
    print(*[line[:500] for line in wrong[:SHOWN]], sep="\n")
    print(f"History checker: {len(wrong)} complaints; {len(PLANTS)} violations were planted.\n", flush=True)
    return not wrong


def _complaints(verdict: Verdict, outcomes: Sequence[Outcome]) -> list[str]:
    found = [f"failed: {o.number} {o.request.name}: {o.error}" for o in outcomes if o.error]
    found += [f"not as undisturbed: {o.number} {o.request.name}: {o.wrong}" for o in outcomes if o.wrong]
    return found + [str(violation) for violation in verdict.violations]


def faults_table(faults: Sequence[Fault], outcomes: Sequence[Outcome], shards: dict[int, int]) -> str:
    """The longest gap between two tokens of a stream around each fault, in its shard and in the others."""
    head = ["fault", "shard", "for, s", "longest gap in its streams, s", "in those of other shards, s"]
    rows: list[Sequence[object]] = []
    for fault in faults:
        gaps: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
        for outcome in outcomes:
            for one, next in pairwise(outcome.arrivals):
                if one <= fault.ended and next >= fault.began:
                    gaps[shards.get(outcome.number) == fault.shard].append(next - one)
        lasted = f"{fault.ended - fault.began:.1f}" if fault.what == "stopped" else ""
        rows.append([fault.what, fault.shard, lasted, *(f"{max(gaps[own]):.1f}" for own in (True, False))])
    return table(head, rows)


if __name__ == "__main__":
    main()
