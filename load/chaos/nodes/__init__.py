"""Nodes of a Ray cluster, of which the link of one that has an engine is cut.

Each node has namespaces of its own for network, processes and mounts, as a container has. All of them are inside
namespaces of the command: when it ends, whatever ends it, the kernel removes processes, links and shared memory. It
needs Linux, root and the commands `ip`, `unshare` and `nsenter`; without them it says so, and ends with status 0.

Engines are null engines, so answers differ each time and are compared with the pool's history only. Owners are not
looked at: one on a node that is cut off lives, and others rightly take it for dead.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from load.chaos.aof import read_transactions
from load.chaos.faults import Fault
from load.chaos.grounds import IDLE, ChaosOptions, Ground, History, Injection
from load.chaos.history import Record
from load.chaos.nodes.cluster import Cluster
from load.chaos.nodes.machine import Machine
from load.chaos.site import NoTarget, Site
from load.trace import HttpRequest, Request
from load.workloads import any_prompt
from services.errors import PoolUnavailable

INSIDE = "LOAD_NODES_INSIDE"  # is set inside the namespaces
NAMESPACES = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
# the first process of a process namespace has to wait for those that lose their parent, as a shell does
FIRST = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; "$@"; exit $?', "sh"]
PROBE = "ip link add probe type veth peer name other && ip link delete probe"

CUTS = (5.0, 60.0)  # seconds
BACK = 120.0  # seconds within which both engines must be ready again
# a null engine with this many requests in an iteration of this many seconds computes 160 tokens/s, on any machine
ENGINES = 2
SETTINGS = {
    "null_engine": True,
    "constants": {"null_iteration": 0.05},
    "max_batch_size": 8,
    "engines": ENGINES,
    "gateways": 2,
}


def enter() -> None:
    """Run this command again inside the namespaces, unless it runs there. Ends it where there can be none."""
    if INSIDE in os.environ:
        return
    if reason := missing():
        print(f"skipped: {reason}")
        sys.exit()
    os.environ[INSIDE] = "1"
    command = [*NAMESPACES, *FIRST, sys.executable, "-m", "load.chaos", *sys.argv[1:]]
    os.execvp(command[0], command)


def missing() -> str:
    """Why there can be no nodes here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid():
        return "network namespaces need root"
    absent = [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]
    if absent:
        return f"there is no command {', '.join(absent)}: install iproute2 and util-linux"
    tried = subprocess.run([*NAMESPACES, "sh", "-c", PROBE], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"this system makes no network namespaces: {tried.stderr.strip()}"


class Nodes(Ground):
    """A head, and two workers with an engine each."""

    learns = False
    site: Any = None  # the faults are those of machines

    def __init__(self, options: ChaosOptions) -> None:
        super().__init__(options)
        cuts = {f"node cut off for {seconds:.0f} s": partial(self._cut, seconds) for seconds in CUTS}
        self.faults = {name: Fault(name, cut) for name, cut in cuts.items()}

    async def start(self, exits: AsyncExitStack) -> None:
        self._cluster = Cluster(self.options.folder / "cluster", SETTINGS)
        exits.push_async_callback(asyncio.to_thread, self._cluster.__exit__)
        await asyncio.to_thread(self._start)
        self._pool, self.url = self._cluster.open_pool(), self._cluster.url
        exits.push_async_callback(self._pool.close)
        await self._until_ready()

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        return [History(records, list(read_transactions(self._cluster.data)))]

    def requests(self) -> list[HttpRequest]:
        return [Request(any_prompt(12, number), self.options.length).http() for number in range(8)]

    def living_schedulers(self) -> Sequence[int]:
        return ()

    async def until_idle(self) -> None:
        async with asyncio.timeout(IDLE):
            now = await self._pool.overview()
            while now.waiting or any(seat.running for seat in now.seats):
                await asyncio.sleep(0.5)
                now = await self._pool.overview()

    def _start(self) -> None:
        self._cluster.__enter__()
        for _ in range(ENGINES):
            self._cluster.add_worker()
        self._cluster.deploy()

    async def _cut(self, seconds: float, _: Site) -> None:
        """Cut the link of a worker whose scheduler owns a seat, until both engines are back."""
        machine = await self._victim()
        before = lost_seats(machine)
        machine.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            machine.mend()
        await self._until_ready()
        told = lost_seats(machine) - before
        print(f"{machine.name} was cut off for {seconds:.0f} s; {told} owners were told that they had lost their seat")

    async def _victim(self) -> Machine:
        owners = await self._owners()
        found = [worker for worker in self._cluster.workers if worker.address in owners]
        if not found:
            raise NoTarget("worker with an owner")
        return found[0]

    async def _owners(self) -> list[str]:
        """The address of each ready engine's scheduler."""
        try:
            seats = (await self._pool.overview()).seats
        except PoolUnavailable:
            return []
        return [seat.owner.partition(":")[0] for seat in seats if seat.alive and seat.gauges.get("ready") == 1]

    async def _until_ready(self) -> None:
        async with asyncio.timeout(BACK):
            while len(await self._owners()) < ENGINES:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.25)


def lost_seats(machine: Machine) -> int:
    """How many owners on the machine have heard from the pool that the seat is not theirs any more."""
    return len(re.findall(r"lost seat \S+: ", machine.logs()))
