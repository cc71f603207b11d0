"""One, two and four pools behind one API: processor time of the pools' servers and of the gateways for a token."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from load.bench.figures import Figures, rounds_of
from load.bench.parts.plane import FLAGS, exchanges_of, priced
from load.bench.spent import Spent, spend
from load.options import Options
from load.over_http import run_over_http
from load.processes import processor_seconds
from load.server import OrcaServer, pool_servers, urls_of
from load.trace import Request
from services.pool.server.pool_server import PoolServer

ROUNDS = 1
SHARDS = (1, 2, 4)
ENGINES, GATEWAYS, STREAMS, TOKENS = 4, 2, 128, 1024
WARM_UP = [Request([5] * 32, 32)] * 64

SPENT, PRICED = "Processor time of a token, µs", "Processor time of the pools' servers, beside its price"
ABOUT = (
    f"{ENGINES} engines that answer at once, {GATEWAYS} gateways and {STREAMS} streams of {TOKENS:,} tokens in all; "
    "servers and client on the same cores. The price is that of the simulator's plans, for exchanges of the measured "
    "number and size. Others: the cores that other work on the machine had meanwhile."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    figures: Figures = {SPENT: {}, PRICED: {}}
    for shards in SHARDS:
        name = f"{shards} shard{'s' * (shards > 1)}"
        figures[SPENT][name], figures[PRICED][name] = asyncio.run(_measure(options, shards))
    return figures


async def _measure(options: Options, shards: int) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with pool_servers(Path(folder), shards) as servers:
            return await asyncio.to_thread(_with_server, options, servers)


def _with_server(options: Options, servers: list[PoolServer]) -> tuple[dict[str, float], dict[str, float]]:
    flags = ["--model", options.model, *FLAGS, "--engines", str(ENGINES), "--gateways", str(GATEWAYS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        OrcaServer(Path(folder), *flags, "--redis-url", urls_of(servers)) as server,
    ):
        asyncio.run(run_over_http(server.url, WARM_UP))
        pools = [pool.pid for pool in servers]
        before, first = server.metrics(), processor_seconds(pools)

        def processes() -> dict[int, float]:
            return server.processor_seconds() | processor_seconds(pools)

        spent = spend(server.url, [Request([5] * 32, TOKENS)] * STREAMS, processes)
        after, last = server.metrics(), processor_seconds(pools)
    busiest = max(last[pid] - first[pid] for pid in pools)
    return _per_token(spent, busiest), priced(spent, exchanges_of(before, after), GATEWAYS, ENGINES)


def _per_token(spent: Spent, busiest: float) -> dict[str, float]:
    """`busiest`: the processor seconds of the server that worked most."""
    each = spent.per_token(1e-6)
    own = {"busiest server": busiest / spent.run.tokens * 1e6}
    rates = {"tokens/s": spent.run.throughput, "others, cores": spent.others}
    return {"servers": each["Redis"], **own, "gateways": each["gateways"], "schedulers": each["schedulers"]} | rates
