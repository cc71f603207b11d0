"""Where a chaos run takes place: what serves, the faults that it may suffer, and the histories that are left of it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from load.arguments import option
from load.chaos.aof import Transaction, read_transactions
from load.chaos.checker import Least
from load.chaos.faults import FAULTS, Fault, signal_to, stop_for
from load.chaos.history import Delivery, End, Record, Violation
from load.chaos.site import Site, keep_history
from load.chaos.workload import REASONS, naming, paper_prompts, poison, requests, vectors
from load.random_adapter import write_adapter
from load.server import OrcaServer, pool_servers, urls_of
from load.trace import HttpRequest
from services.files import user_cache
from services.models import resolve
from services.models.info import ModelInfo
from services.models.linears import load_linears
from services.pool.server.pool_server import PoolServer
from services.pool.shards import model_of, shard_of
from services.settings.models import entries

KEEP_ENDED = 3600.0  # seconds: the checker reads what ended before
KEY = re.compile(rb"orca:\{([^}]*)\}:(?:seq:([^/]*))?")
SHARD_OUTAGE = 8.0  # seconds for which a shard's server is stopped


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What a run is told. Data and histories are written to `folder`; `serve`: further flags of `orca serve`."""

    folder: Path
    serve: Sequence[str] = ()
    seconds: float = option(300.0, "for how long streams are started")
    every: float = option(10.0, "seconds between faults")
    streams: Sequence[int] = option((16,), "streams open at any time, of each model", type=int, nargs="+")
    pause: Sequence[float] = option(
        (0.0,), "seconds between a stream and the next one in its place, of each model", type=float, nargs="+"
    )
    seed: int = option(0, "seed of the faults")
    length: int = option(40, "output tokens of a usual request")
    model: Sequence[str] = option(
        ("default",), "as `orca serve MODEL ...`; the first has the adapters", nargs="+", type=str
    )
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
        """What each model has to have had at least: an answer per minute for each stream of the model with the fewest,
        a quarter of the usual tokens for each answer, a fault in four times `every` seconds. More than half of the time
        may be lost to faults."""
        answers = max(1, int(min(self.streams) * self.seconds / 60))
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


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model of the server: its entry in the setting `models`, the names by which its requests name it and its
    adapters, its streams, and seconds between them. An empty name: requests name no model."""

    entry: dict[str, Any]
    names: Sequence[str]
    vectors: bool
    deadly_token: int
    streams: int
    pause: float

    @classmethod
    def of(cls, options: ChaosOptions, place: int) -> AskedModel:
        """The model at this place of the options; writes its adapters."""
        (entry,) = entries(options.model[place])
        model, names = resolve(entry["model"], user_cache()), [f"model-{place}" if place else ""]
        vectors = ModelInfo.load(model).pooling is not None
        entry = ({} if vectors else REASONS) | entry | ({"served_model_name": names} if place else {})
        if options.adapters and not place:
            linears = load_linears(model, user_cache())
            folders = [options.folder / f"adapter-{number}" for number in range(options.adapters)]
            for seed, folder in enumerate(folders):
                write_adapter(folder, linears, seed, deviation=0.02)
            names += [folder.name for folder in folders]
            entry |= {"enable_lora": True, "lora_modules": [f"{folder.name}={folder}" for folder in folders]}
        token = entry.get("deadly_token", options.deadly_token)
        streams, pause = (given[min(place, len(given) - 1)] for given in (options.streams, options.pause))
        return cls(entry, names, vectors, token, int(streams), pause)

    def requests(self, options: ChaosOptions) -> list[HttpRequest]:
        """All kinds of requests to it."""
        if self.vectors:
            return naming(vectors(self.deadly_token, paper_prompts()), self.names)
        kinds = requests(options.length, self.deadly_token, paper_prompts(), constrained=True)
        return naming([one for one in kinds if one.body["temperature"] > 0 or not options.sampled], self.names)

    def poison(self) -> HttpRequest:
        made = poison(self.deadly_token, self.vectors)
        return replace(naming([made], self.names)[0], name=made.name)


class Ground(ABC):
    """Serves within `async with`. `faults`: all that there are, by name; `keys`: API keys of the clients, if any."""

    faults: dict[str, Fault]
    site: Site
    keys: Sequence[str] = ()
    kept: Sequence[Path] = ()  # folders of the pool's servers whose whole append-only files are read

    def __init__(self, options: ChaosOptions) -> None:
        self.options, self.data = options, options.folder / "data"
        self.models = [AskedModel.of(options, place) for place in range(len(options.model))]

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
        common = [*(json.dumps(model.entry) for model in self.models), "--dtype", "float32", "--gateways", "2"]
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
        self.kept = [self.data]
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
        self.kept = [server.data_dir for server in self._servers]
        for folder in self.kept:
            keep_history(folder)
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


def by_model(one: History) -> list[History]:
    """The history of each model: what its pool did, and what clients saw of the requests that its pool has."""
    tags = {pool: tag for t in one.transactions for pool, tag in [pool_and_tag(t)] if tag is not None}
    if len({*tags.values()}) < 2:
        return [one]
    of, found = {r.request: model_of(r.pool_id) for r in one.records if isinstance(r, Delivery | End)}, []
    for tag in sorted({*tags.values()}):
        own = [record for record in one.records if of.get(record.request, "") == tag]
        history = [t for t in one.transactions if tags.get(pool_and_tag(t)[0]) == tag]
        note = f"{one.note}Model {tag or 'without a tag'}:\n"
        found.append(replace(one, records=own, transactions=history, of=frozenset(r.request for r in own), note=note))
    return found


def pool_and_tag(transaction: Transaction) -> tuple[str, str | None]:
    """The pool of a transaction, and the tag of its model if the transaction has a request."""
    keys = [key for command in transaction.commands if len(command) > 1 and (key := KEY.match(command[1]))]
    ids = [key[2].decode() for key in keys if key[2]]
    return keys[0][1].decode() if keys else "", model_of(ids[0]) if ids else None
