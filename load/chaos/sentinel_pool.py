"""A pool of three servers with Sentinels whose master is killed, stopped, cut off, or replaced as for maintenance.

The history is put together from the files of all servers. Cutting off needs iptables and the rights for it; otherwise
these faults are left out. Without `--wait-replicas`, scripts that ran on the earlier master may be lost: the number is
printed. A request may be unknown to the pool in the end then, if it was submitted during a fault. With it, none may.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

from load.chaos.faults import Fault
from load.chaos.grounds import ChaosOptions, Ground, History, Injection
from load.chaos.history import Record
from load.chaos.sentinels import Sentinels, Server
from load.chaos.site import Site
from load.chaos.timeline import Archive, put_together
from load.server import until
from services.pool.server.binaries import find_servers

OUTAGE = 12.0  # seconds for which a master is stopped or cut off: longer than a failover
AGAIN = 30.0  # seconds until the earlier master is a replica of the new one
PLANS = 3  # times that a planned failover is asked for


class SentinelPool(Ground):
    """Each fault is over when two replicas follow the new master."""

    def __init__(self, options: ChaosOptions) -> None:
        super().__init__(options)
        kinds: dict[str, Callable[[Server], Awaitable[None]]] = {
            "master killed": self._kill,
            "master stopped": self._stop,
            "planned failover": self._plan,
        }
        if can_filter():
            kinds["master cut off from its replicas"] = partial(self._cut_off, clients=False)
            kinds["master cut off"] = partial(self._cut_off, clients=True)
        self.faults = {name: Fault(name, partial(self._inject, kind), takes_pool=True) for name, kind in kinds.items()}

    async def start_pool(self, exits: AsyncExitStack) -> list[str]:
        options = self.options
        binary = next(server for server in find_servers() if server.version >= (7,))
        written = {"appendfsync": "everysec"}
        self._sentinels = Sentinels(options.folder / "pool", binary, options.down_after, options=written)
        exits.callback(self._sentinels.stop)
        await asyncio.to_thread(self._sentinels.start)
        self._archive = exits.enter_context(Archive(server.folder for server in self._sentinels.servers))
        exits.push_async_callback(self._finish)
        return ["--redis-url", self._sentinels.url, "--wait-replicas", str(options.wait_replicas)]

    async def _finish(self) -> None:
        """Before the servers end: which is the last master, and that the files have all that it answered."""
        self._last = self._sentinels.master()
        await asyncio.to_thread(self._sentinels.wait_until_written)

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        segments = {server.host: self._archive.segments(server.folder) for server in self._sentinels.servers}
        timeline = put_together([one for own in segments.values() for one in own], segments[self._last.host][-1])
        unix = time.time() - time.monotonic()
        during = [unix + i.time + second for i in made for second in range(round(OUTAGE + AGAIN))]
        losses = [] if self.options.wait_replicas else during
        lost, kept = timeline.lost, len(timeline.transactions)
        note = f"Scripts that failovers lost: {lost} of {lost + kept}."
        return [History(records, timeline.transactions, losses, timeline.violations, note=note)]

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
