"""`python -m load.chaos.failover`: the master of the pool fails under open streams, then the checker's verdict.

Starts three servers with Sentinels and `orca serve` on them. The master is killed, stopped, cut off from its replicas,
cut off from everything, or replaced as for maintenance, in turn. The history is put together from the files of all
servers. Cutting off needs iptables and the rights for it; otherwise these faults are left out.

Without `--wait-replicas`, scripts that ran on the earlier master may be lost: the number is printed. A request may be
unknown to the pool in the end then, if it was submitted during a fault. With it, none may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from load.chaos import history
from load.chaos.checker import Circumstances, check
from load.chaos.faults import Fault
from load.chaos.planted import PLANTS, missed_plants
from load.chaos.report import Injection, leave
from load.chaos.run import IDLE, PATIENCE, ChaosOptions, inject_faults, print_results, watch_schedulers
from load.chaos.sentinels import Sentinels, Server
from load.chaos.site import Site
from load.chaos.streams import Streams
from load.chaos.timeline import Archive, Timeline, put_together
from load.chaos.workload import paper_prompts, requests
from load.report import machine
from load.server import OrcaServer, until
from services.client.streaming import open_session
from services.pool.server.binaries import find_servers

OUTAGE = 12.0  # seconds for which a master is stopped or cut off: longer than a failover
AGAIN = 30.0  # seconds until the earlier master is a replica of the new one
PLANS = 3  # times that a planned failover is asked for
NEVER = 49_000  # a token that no answer contains


class Failover:
    """The faults. Each returns when two replicas follow the new master."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels

    def faults(self) -> list[Fault]:
        kinds: dict[str, Callable[[Server], Awaitable[None]]] = {
            "master killed": self._kill,
            "master stopped": self._stop,
            "planned failover": self._plan,
        }
        if can_filter():
            kinds["master cut off from its replicas"] = partial(self._cut_off, clients=False)
            kinds["master cut off"] = partial(self._cut_off, clients=True)
        return [Fault(name, partial(self._inject, kind), takes_pool=True) for name, kind in kinds.items()]

    async def _inject(self, kind: Callable[[Server], Awaitable[None]], _: Site) -> None:
        await kind(await asyncio.to_thread(self._sentinels.master))
        await until(self._is_whole, AGAIN)

    def _is_whole(self) -> bool:
        return self._sentinels.replicas_online(self._sentinels.master()) == len(self._sentinels.servers) - 1

    async def _kill(self, master: Server) -> None:
        assert master.process is not None
        master.process.kill()
        master.process.wait()
        await self._next_master(master)
        await asyncio.to_thread(self._sentinels.start_server, master)  # it believes to be the master

    async def _stop(self, master: Server) -> None:
        os.kill(master.pid, signal.SIGSTOP)
        try:
            await asyncio.gather(asyncio.sleep(OUTAGE), self._next_master(master))
        finally:
            os.kill(master.pid, signal.SIGCONT)

    async def _plan(self, master: Server) -> None:
        """Ask for a failover; again if the Sentinels give it up, because the chosen replica was not ready in time."""
        for _ in range(PLANS - 1):
            self._sentinels.fail_over()
            with contextlib.suppress(TimeoutError):
                await self._next_master(master)
                return
        self._sentinels.fail_over()
        await self._next_master(master)

    async def _cut_off(self, master: Server, clients: bool) -> None:
        others = [""] if clients else [server.host for server in self._sentinels.servers if server is not master]
        with filtered(master.host, others):
            await asyncio.gather(asyncio.sleep(OUTAGE), self._next_master(master))

    async def _next_master(self, master: Server) -> None:
        await asyncio.to_thread(self._sentinels.wait_for_master, master)


def can_filter() -> bool:
    """Whether this process may change the packet filter."""
    if shutil.which("iptables") is None:
        return False
    return subprocess.run(["iptables", "-w", "-n", "-L", "INPUT"], capture_output=True).returncode == 0


@contextlib.contextmanager
def filtered(host: str, others: list[str]) -> Iterator[None]:
    """No packet goes between a loopback address and the others; an empty one stands for all."""
    pairs = [pair for other in others for pair in ((host, other), (other, host))]
    rules = [[*(["-s", s] if s else []), *(["-d", d] if d else []), "-j", "DROP"] for s, d in pairs]
    made: list[list[str]] = []
    try:
        for rule in rules:
            subprocess.run(["iptables", "-w", "-I", "INPUT", *rule], check=True)
            made.append(rule)
        yield
    finally:
        for rule in made:
            subprocess.run(["iptables", "-w", "-D", "INPUT", *rule], check=True)


async def run(options: ChaosOptions, wait_replicas: int, down_after: float) -> bool:
    """Run and print the tables; returns whether all rules held and the checker found all planted violations."""
    binary = next(server for server in find_servers() if server.version >= (7,))
    data = options.folder / "data"
    data.mkdir()
    sentinels = Sentinels(options.folder / "pool", binary, down_after, options={"appendfsync": "everysec"})
    await asyncio.to_thread(sentinels.start)
    try:
        with Archive(server.folder for server in sentinels.servers) as archive:
            flags = ["--model", options.model, "--dtype", "float32", "--gateways", "2", "--redis-url", sentinels.url]
            flags += ["--wait-replicas", str(wait_replicas), "--keep-ended", "3600", *options.serve]
            async with served(data, flags) as server:
                print(f"{binary}, a master is taken for dead after {down_after} s, wait_replicas {wait_replicas}.\n")
                streams, injections, seen = await under_load(options, server, Failover(sentinels))
            last = sentinels.master()
            await asyncio.to_thread(sentinels.wait_until_written)
        timeline = whole_history(archive, sentinels, last)
    finally:
        sentinels.stop()
    return verdict_of(options, streams, injections, seen, timeline, wait_replicas)


@contextlib.asynccontextmanager
async def served(data: Path, flags: list[str]) -> AsyncIterator[OrcaServer]:
    server = OrcaServer(data, *flags)
    await asyncio.to_thread(server.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.__exit__)


async def under_load(
    options: ChaosOptions, server: OrcaServer, failover: Failover
) -> tuple[Streams, list[Injection], dict[int, float]]:
    """Keep streams open while one fault comes after the other; returns when all have ended. Also returns when each
    scheduler was last seen alive."""
    faults, draw, seen = failover.faults(), random.Random(options.seed), dict[int, float]()
    count = int(options.seconds / options.every)
    chosen = [fault for _ in range(count) for fault in draw.sample(faults, len(faults))][:count]
    async with open_session(server.url) as session:
        with history.Recorder(options.folder / "clients.jsonl", time.time) as recorder:
            streams, over = Streams(session, recorder, PATIENCE), asyncio.Event()
            kinds = requests(options.length, NEVER, paper_prompts())
            await streams.learn(kinds)
            site = Site(server)
            watching = asyncio.create_task(watch_schedulers(site, seen))
            load = asyncio.create_task(streams.keep(kinds, options.streams, over))
            injections = await inject_faults(site, chosen, options.every, options.seconds, streams, options.streams)
            over.set()
            await load
            await asyncio.to_thread(server.until_idle, IDLE)  # what is left then is a violation
            watching.cancel()
    return streams, injections, seen


def whole_history(archive: Archive, sentinels: Sentinels, last: Server) -> Timeline:
    segments = {server.host: archive.segments(server.folder) for server in sentinels.servers}
    return put_together([one for of_server in segments.values() for one in of_server], segments[last.host][-1])


def verdict_of(
    options: ChaosOptions,
    streams: Streams,
    injections: list[Injection],
    seen: dict[int, float],
    timeline: Timeline,
    wait_replicas: int,
) -> bool:
    """Print the tables; returns whether all rules held and the checker found all planted violations."""
    records = list(history.read(options.folder / "clients.jsonl"))
    made = [injection for injection in injections if not injection.skipped]
    unix = time.time() - time.monotonic()
    during = [unix + i.time + second for i in made for second in range(round(OUTAGE + AGAIN))]
    known = Circumstances([] if wait_replicas else during, seen, len(made))
    verdict = check(records, timeline.transactions, options.least, known)
    verdict.violations.extend(timeline.violations)
    held = print_results(options, injections, streams.outcomes, verdict)
    print(f"Scripts that failovers lost: {timeline.lost} of {timeline.lost + len(timeline.transactions)}.")
    missed = missed_plants(verdict, records, timeline.transactions, random.Random(options.seed))
    print(f"Planted violations: {len(PLANTS) - len(missed)} of {len(PLANTS)} found.", *missed, sep="\n")
    return held and not missed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.chaos.failover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="for how long faults are injected")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between faults")
    parser.add_argument("--streams", type=int, default=8, help="streams open at any time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--length", type=int, default=40, help="output tokens of a usual request")
    parser.add_argument("--model", default="default", help="as `orca serve --model`")
    parser.add_argument("--wait-replicas", type=int, default=0, help="as `orca serve --wait-replicas`")
    parser.add_argument("--down-after", type=float, default=2.0, help="seconds of the Sentinels' down-after")
    parser.add_argument("serve", nargs="*", help="further flags of `orca serve`, after --")
    given = vars(parser.parse_args())
    wait_replicas, down_after = given.pop("wait_replicas"), given.pop("down_after")
    print(f"Measured on {machine()}.\n", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="orca-failover-"))
    given |= {"engines": 1, "tenants": 1, "deadly_token": -1, "durability": "everysec", "refusals": [408, 429]}
    options = ChaosOptions(folder=folder, faults=[], **given)
    held = asyncio.run(run(options, wait_replicas, down_after))
    leave(folder, held)


if __name__ == "__main__":
    main()
