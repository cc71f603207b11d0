"""Where a chaos run takes place: what serves, the faults that it may suffer, and the histories that are left of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from load.chaos.aof import Transaction, read_transactions
from load.chaos.checker import Least
from load.chaos.faults import FAULTS, Fault
from load.chaos.history import Record, Violation
from load.chaos.site import SCHEDULER, Site, facts, keep_history
from load.chaos.streams import Outcome, Streams
from load.chaos.structured import constrained
from load.chaos.workload import paper_prompts, poison, requests
from load.server import OrcaServer
from load.trace import HttpRequest

KEEP_ENDED = 3600.0  # seconds: the checker reads what ended before
IDLE = 120.0  # seconds within which the pool must be empty after all clients have ended


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """The options of `python -m load.chaos --help`. Data and histories are written to `folder`."""

    folder: Path
    seconds: float = 300.0
    every: float = 10.0
    streams: int = 16
    seed: int = 0
    length: int = 40
    model: str = "default"
    engines: int = 1
    tenants: int = 1
    refusals: Sequence[int] = (408, 429)
    deadly_token: int = 49_000
    durability: str = "strict"
    wait_replicas: int = 0
    down_after: float = 2.0
    shards: int = 2
    faults: Sequence[str] = ()
    serve: Sequence[str] = ()

    @property
    def least(self) -> Least:
        """One answer per minute for each stream, a quarter of the usual tokens for each answer, one fault in four times
        `every` seconds: more than half of the time may be lost to faults."""
        answers = max(1, int(self.streams * self.seconds / 60))
        return Least(answers, answers * self.length // 4, max(1, int(self.seconds / (4 * self.every))))

    @property
    def keys(self) -> list[str]:
        """An API key for each tenant; none if there is only one tenant."""
        return [f"key-{number}" for number in range(self.tenants)] if self.tenants > 1 else []


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault as it happened, from `time` to `ended` on the clock of `time.monotonic`; `skipped` tells why the fault
    was not injected; `streams` is the number of streams that were open, `documents` that of outputs with a constraint
    among them."""

    fault: str
    time: float
    skipped: str = ""
    streams: int = 0
    documents: int = 0
    ended: float = 0.0


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
    """Serves within `async with`. `faults`: all that there are, by name."""

    faults: dict[str, Fault]
    learns = True  # answers are the same each time
    url: str
    site: Site

    def __init__(self, options: ChaosOptions) -> None:
        self.options = options

    async def __aenter__(self) -> Ground:
        self._exits = AsyncExitStack()
        try:
            await self.start(self._exits)
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    @abstractmethod
    async def start(self, exits: AsyncExitStack) -> None:
        """Start all that serves, and push onto `exits` what ends it; sets `url` and `site`."""

    @abstractmethod
    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        """To be called after the end, with what clients saw and the faults that were made."""

    def requests(self) -> list[HttpRequest]:
        """What clients send, again and again."""
        return requests(self.options.length, self.options.deadly_token, paper_prompts())

    def begin(self, streams: Streams) -> None:  # noqa: B027 - most need nothing of it
        """The clients begin."""

    def facts(self) -> str:
        """A line on what serves."""
        return ""

    def living_schedulers(self) -> Sequence[int]:
        return self.site.server.pids(SCHEDULER)

    async def until_idle(self) -> None:
        """Wait for requests without clients; what is left then is a violation."""
        await asyncio.to_thread(self.site.server.until_idle, IDLE)

    def table(self, injections: Sequence[Injection], outcomes: Sequence[Outcome], records: Sequence[Record]) -> str:
        """A further table of the faults; empty if there is none."""
        return ""

    def flags(self) -> list[str]:
        """The flags of each `orca serve`."""
        flags = ["--model", self.options.model, "--dtype", "float32"]
        return [*flags, *self.options.serve]


class OwnPool(Ground):
    """`orca serve` with a pool of its own: any of its processes is killed or stopped."""

    faults = FAULTS

    async def start(self, exits: AsyncExitStack) -> None:
        self.data = self.options.folder / "data"
        self.data.mkdir()
        self.site = Site(await asyncio.to_thread(self._start), self._start_again)
        exits.push_async_callback(lambda: asyncio.to_thread(self.site.server.__exit__))  # the server of then
        self.url = self.site.server.url

    def flags(self) -> list[str]:
        options = self.options
        flags = ["--engines", str(options.engines), "--gateways", "2", "--durability", options.durability]
        flags += ["--deadly-token", str(options.deadly_token), "--max-pool-bytes", str(1 << 32)]
        if options.keys:
            flags += ["--api-keys", json.dumps({key: f"tenant-{key}" for key in options.keys})]
        return [*flags, *super().flags()]

    def requests(self) -> list[HttpRequest]:
        options = self.options
        kinds = requests(options.length, options.deadly_token, paper_prompts(), constrained(options.length))
        return random.Random(options.seed).sample(kinds, len(kinds))  # the constrained ones among the others

    def begin(self, streams: Streams) -> None:
        async def send_poison() -> None:
            await streams.run(poison(self.options.deadly_token))

        self.site.poison = send_poison

    def facts(self) -> str:
        return facts(self.site.server, self.options.keys)

    def histories(self, records: Sequence[Record], made: Sequence[Injection]) -> list[History]:
        return [History(records, list(read_transactions(self.data)), self.losses(made))]

    def losses(self, made: Sequence[Injection]) -> list[float]:
        """When the pool's server died (Unix time, s) and may have forgotten something: a second after the fault began,
        which is the time to find and kill it."""
        if self.options.durability == "strict":
            return []
        unix = time.time() - time.monotonic()
        return [unix + i.time + 1.0 for i in made if FAULTS[i.fault].takes_pool]

    def _start(self, port: int = 0) -> OrcaServer:
        server = OrcaServer(self.data, *self.flags(), port=port, keep_ended=KEEP_ENDED)
        server.__enter__()
        keep_history(self.data)
        return server

    def _start_again(self) -> None:
        self.site.server = self._start(self.site.server.port)
