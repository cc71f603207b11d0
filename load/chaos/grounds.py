"""Where a chaos run takes place: what serves, the faults that it may suffer, and the histories that are left of it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from load.arguments import option
from load.chaos.aof import Transaction, read_transactions
from load.chaos.checker import Least
from load.chaos.faults import FAULTS, Fault, signal_to, stop_for
from load.chaos.history import Delivery, End, Record, Violation
from load.chaos.site import Site, keep_history
from load.chaos.workload import REASONS
from load.random_adapter import write_adapter
from load.server import OrcaServer, pool_servers, urls_of
from services.files import user_cache
from services.models import resolve
from services.models.info import ModelInfo
from services.models.linears import load_linears
from services.pool.server.pool_server import PoolServer
from services.pool.shards import shard_of

KEEP_ENDED = 3600.0  # seconds: the checker reads what ended before
SHARD_OUTAGE = 8.0  # seconds for which a shard's server is stopped


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What a run is told. Data and histories are written to `folder`; `serve`: further flags of `orca serve`."""

    folder: Path
    serve: Sequence[str] = ()
    seconds: float = option(300.0, "for how long streams are started")
    every: float = option(10.0, "seconds between faults")
    streams: int = option(16, "streams open at any time")
    pause: float = option(0.0, "seconds between a stream and the next one in its place")
    seed: int = option(0, "seed of the faults")
    length: int = option(40, "output tokens of a usual request")
    model: str = option("default", "as `orca serve --model`")
    engines: int = option(1, "of the own pool")
    tenants: int = option(3, "of the own pool, each with an API key of its own")
    refusals: Sequence[int] = option((408, 429), "statuses with which a request may end", type=int, nargs="*")
    deadly_token: int = option(49_000, "a token id that no answer contains, for the fault poison")
    durability: str = option("strict", "of the own pool", choices=["strict", "everysec"])
    wait_replicas: int = option(0, "as `orca serve`, behind Sentinels")
    down_after: float = option(2.0, "seconds after which a Sentinel takes a master for dead")
    shards: int = option(2, "each with a server and an engine")
    adapters: int = option(0, "random LoRA adapters, which the requests have in turn, and every so many none")
    sampled: bool = option(False, "send only requests that are sampled")
    faults: Sequence[str] = option((), "some of those that there are; without it all", type=str, nargs="*")

    @property
    def least(self) -> Least:
        """One answer per minute for each stream, a quarter of the usual tokens for each answer, one fault in four times
        `every` seconds: more than half of the time may be lost to faults."""
        answers = max(1, int(self.streams * self.seconds / 60))
        return Least(answers, answers * self.length // 4, max(1, int(self.seconds / (4 * self.every))))


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault as it happened, at `time` on the clock of `time.monotonic`; `skipped` tells why it was not injected;
    `streams` is the number of streams that were open."""

    fault: str
    time: float
    skipped: str = ""
    streams: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """What is judged together: what clients saw, what their pool did, when it may have forgotten something (Unix time,
    s), violations that are known already, the clients' requests, and a note on it all."""

    records: Sequence[Record]
    transactions: Sequence[Transaction]
    losses: Sequence[float] = ()
    violations: Sequence[Violation] = ()
    of: frozenset[int] | None = None  # the numbers of the requests; None: all
    note: str = ""


class Ground(ABC):
    """Serves within `async with`. `faults`: all that there are, by name; `keys`: API keys of the clients, if any;
    `vectors`: the model makes vectors."""

    faults: dict[str, Fault]
    site: Site
    keys: Sequence[str] = ()

    def __init__(self, options: ChaosOptions) -> None:
        self.options, self.data = options, options.folder / "data"
        model = resolve(options.model, user_cache())
        self.vectors = ModelInfo.load(model).pooling is not None
        self.adapters = [f"adapter-{number}" for number in range(options.adapters)]
        linears = load_linears(model, user_cache()) if self.adapters else {}
        for seed, name in enumerate(self.adapters):
            write_adapter(options.folder / name, linears, seed, deviation=0.02)

    async def __aenter__(self) -> Ground:
        self.data.mkdir()
        self._exits = AsyncExitStack()
        try:
            flags = await self.start_pool(self._exits)
            self.site = Site(await asyncio.to_thread(self._serve, flags), partial(self._serve_again, flags))
            self._exits.push_async_callback(lambda: asyncio.to_thread(self.site.server.__exit__))  # the server of then
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    @abstractmethod
    async def start_pool(self, exits: AsyncExitStack) -> list[str]:
        """Start the servers of the pool and push onto `exits` what ends them; returns the flags of `orca serve`."""

    @abstractmethod
    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        """To be called after the end, with what clients saw and the faults that were made."""

    def _serve(self, flags: Sequence[str], port: int = 0) -> OrcaServer:
        options = self.options
        common = ["--model", options.model, "--dtype", "float32", "--gateways", "2"]
        common += [] if self.vectors else REASONS
        if self.adapters:
            common += ["--enable-lora", "--lora-modules", *(f"{one}={options.folder / one}" for one in self.adapters)]
        server = OrcaServer(self.data, *common, *flags, *options.serve, port=port, keep_ended=KEEP_ENDED)
        server.__enter__()
        return server

    def _serve_again(self, flags: Sequence[str]) -> None:
        self.site.server = self._serve(flags, self.site.server.port)


class OwnPool(Ground):
    """`orca serve` with a pool of its own: any of its processes is killed or stopped."""

    faults = FAULTS

    async def start_pool(self, exits: AsyncExitStack) -> list[str]:
        options = self.options
        flags = ["--engines", str(options.engines), "--durability", options.durability]
        flags += ["--deadly-token", str(options.deadly_token), "--max-pool-bytes", str(1 << 32)]
        if options.tenants > 1:
            self.keys = [f"key-{number}" for number in range(options.tenants)]
            flags += ["--api-keys", json.dumps({key: f"tenant-{key}" for key in self.keys})]
        return flags

    def _serve(self, flags: Sequence[str], port: int = 0) -> OrcaServer:
        server = super()._serve(flags, port)
        keep_history(self.data)
        return server

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        return [History(records, list(read_transactions(self.data)), self.losses(made))]

    def losses(self, made: Sequence[Injection]) -> list[float]:
        """When the pool's server died (Unix time, s) and may have forgotten something: a second after the fault began,
        which is the time to find and kill it."""
        if self.options.durability == "strict":
            return []
        unix = time.time() - time.monotonic()
        return [unix + i.time + 1.0 for i in made if FAULTS[i.fault].takes_pool]


class Shards(Ground):
    """Several shards, each with a server and an engine: the server of one is killed or stopped.

    The servers sync each write before they reply. The file of each is checked with what the clients of that shard's
    requests saw.
    """

    def __init__(self, options: ChaosOptions) -> None:
        super().__init__(options)
        kinds = {"killed": self._kill, "stopped": self._stop}
        each = [
            (f"shard {shard} {what}", partial(kinds[what], shard)) for shard in range(options.shards) for what in kinds
        ]
        self.faults = {name: Fault(name, inject) for name, inject in each}
        self._servers: list[PoolServer] = []

    async def start_pool(self, exits: AsyncExitStack) -> list[str]:
        self._servers = await exits.enter_async_context(
            pool_servers(self.options.folder, self.options.shards, "strict")
        )
        for server in self._servers:
            keep_history(server.data_dir)
        return ["--engines", str(self.options.shards), "--redis-url", urls_of(self._servers)]

    async def _kill(self, shard: int, _: Site) -> None:
        signal_to(signal.SIGKILL, self._servers[shard].pid)

    async def _stop(self, shard: int, _: Site) -> None:
        await stop_for(SHARD_OUTAGE, self._servers[shard].pid)

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        of, found = shards_of(records), []
        for shard, server in enumerate(self._servers):
            own = [record for record in records if of.get(record.request, 0) == shard]
            numbers = frozenset(record.request for record in own)
            history = list(read_transactions(server.data_dir))
            found.append(History(own, history, of=numbers, note=f"Shard {shard}:\n"))
        return found


def shards_of(records: Sequence[Record]) -> dict[int, int]:
    """The shard of each request of a client that was accepted."""
    return {record.request: shard_of(record.pool_id) for record in records if isinstance(record, Delivery | End)}
