"""Several shards, each with a server and an engine: the server of one is killed or stopped.

The servers sync each write before they reply. Streams of the other shards must go on, and no token may be lost. The
file of each server is checked with what the clients of that shard's requests saw.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise

from load.chaos.aof import read_transactions
from load.chaos.faults import Fault, signal_to, stop_for
from load.chaos.grounds import KEEP_ENDED, ChaosOptions, Ground, History, Injection
from load.chaos.history import Delivery, End, Record
from load.chaos.site import Site, keep_history
from load.chaos.streams import Outcome
from load.report import table
from load.server import OrcaServer, pool_servers, urls_of
from services.pool.server.pool_server import PoolServer
from services.pool.shards import shard_of

OUTAGE = 8.0  # seconds for which a server is stopped


class Shards(Ground):
    def __init__(self, options: ChaosOptions) -> None:
        super().__init__(options)
        self.faults = {}
        for shard in range(options.shards):
            for what in ("killed", "stopped"):
                name = f"shard {shard} {what}"
                self.faults[name] = Fault(name, partial(self._inject, shard, what))
        self._servers: list[PoolServer] = []

    async def start(self, exits: AsyncExitStack) -> None:
        options = self.options
        self._servers = await exits.enter_async_context(pool_servers(options.folder, options.shards, "strict"))
        for server in self._servers:
            keep_history(server.data_dir)
        (data := options.folder / "data").mkdir()
        of_shards = ["--engines", str(options.shards), "--redis-url", urls_of(self._servers)]
        self.site = Site(OrcaServer(data, *self.flags(), *of_shards, keep_ended=KEEP_ENDED))
        exits.push_async_callback(asyncio.to_thread, self.site.server.__exit__)
        await asyncio.to_thread(self.site.server.__enter__)
        self.url = self.site.server.url

    async def _inject(self, shard: int, what: str, _: Site) -> None:
        if what == "killed":
            signal_to(signal.SIGKILL, self._servers[shard].pid)
        else:
            await stop_for(self._servers[shard].pid, OUTAGE)

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        of, found = shards_of(records), []
        for shard, server in enumerate(self._servers):
            own = [record for record in records if of.get(record.request, 0) == shard]
            numbers = frozenset(record.request for record in own)
            history = list(read_transactions(server.data_dir))
            found.append(History(own, history, of=numbers, note=f"Shard {shard}:\n"))
        return found

    def table(self, injections: Sequence[Injection], outcomes: Sequence[Outcome], records: Sequence[Record]) -> str:
        """The longest gap between two tokens of a stream around each fault, in its shard and in the others."""
        of, rows = shards_of(records), []
        for fault in (injection for injection in injections if not injection.skipped):
            shard = int(fault.fault.split()[1])
            gaps: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
            for outcome in outcomes:
                for one, next in pairwise(outcome.arrivals):
                    if one <= fault.ended and next >= fault.time:
                        gaps[of.get(outcome.number) == shard].append(next - one)
            rows.append([fault.fault, *(f"{max(gaps[own]):.1f}" for own in (True, False))])
        return table(["fault", "longest gap in its streams, s", "in those of other shards, s"], rows)


def shards_of(records: Sequence[Record]) -> dict[int, int]:
    """The shard of each request of a client that was accepted."""
    return {record.request: shard_of(record.pool_id) for record in records if isinstance(record, Delivery | End)}
