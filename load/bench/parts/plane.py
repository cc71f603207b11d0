"""The plane alone: HTTP, gateway, pool, scheduler and Ray around the null engine, which answers at once."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from gateway.pool_client.event_reader import PAUSE
from load.bench.figures import Figures, rounds_of
from load.bench.spent import spend
from load.options import Options
from load.over_http import OverHttp, run_over_http
from load.server import OrcaServer
from load.simulation.pool import Price
from load.trace import Request, Run

ROUNDS = 1
LONE = 300
PROMPT = 32
GATEWAYS = (1, 2, 4, 8)
DEFAULT_GATEWAYS = 2
TOKENS = {1: 1024, 32: 512, 128: 256, 1000: 64}  # of each stream, by the number of streams
FLAGS = ("--null-engine", "--max-batch-size", "1024", "--kv-blocks", "100000")

EXCHANGES = "orca:exchange_seconds"
FIRST_TOKEN = "time to first token"
FIRST, RATES, SPENT = "A lone request, ms", "Streams at once", "Processor time of a token, and of a chunk in all, µs"
PRICED = "Processor time of the pool's server, beside its price"
ABOUT = (
    "An engine that answers at once; server and client on the same cores. The streams have "
    + ", ".join(f"{tokens:,} tokens where there are {streams:,}" for streams, tokens in TOKENS.items())
    + f". A lone request: {LONE} times, {PROMPT} tokens in, {DEFAULT_GATEWAYS} gateways. "
    "The price is that of the simulator's plans. Others: the cores that other work on the machine had meanwhile."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    figures: Figures = {FIRST: {}, RATES: {}, SPENT: {}, PRICED: {}}
    for gateways in GATEWAYS:
        flags = ["--model", options.model, *FLAGS, "--gateways", str(gateways)]
        with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
            asyncio.run(run_over_http(server.url, [_request(32)] * 32 * gateways))  # warm up
            if gateways == DEFAULT_GATEWAYS:
                figures[FIRST] = _lone(server)
            for streams, tokens in TOKENS.items():
                name = row(gateways, streams)
                rates, spent, priced = _streams(server, [_request(tokens)] * streams, gateways)
                figures[RATES][name], figures[SPENT][name], figures[PRICED][name] = rates, spent, priced
    return figures


def row(gateways: int, streams: int) -> str:
    return f"{gateways} gateway{'s' * (gateways > 1)}, {streams:,} stream{'s' * (streams > 1)}"


def _request(tokens: int) -> Request:
    return Request([5] * PROMPT, tokens)


def _streams(server: OrcaServer, requests: list[Request], gateways: int) -> tuple[dict[str, float], ...]:
    """Rates and times of these streams, the processor time of their tokens, and that of the pool's server."""
    before = server.metrics()
    spent = spend(server.url, requests, server.processor_seconds)
    after = server.metrics()
    run, means = spent.run, _means(before, after)
    rates = {
        "tokens/s": run.throughput,
        "chunks/s": spent.chunks / run.seconds,
        "tokens of a chunk": run.tokens / spent.chunks,
        "TTFT, ms": statistics.median(answer.ttft for answer in run.answers) * 1e3,
        "iteration, ms": means["orca:iteration_seconds"] * 1e3,
        "exchange, ms": means[EXCHANGES] * 1e3,
        "others, cores": spent.others,
    }
    exchanges = after[f"{EXCHANGES}_count"] - before.get(f"{EXCHANGES}_count", 0.0)
    return rates, spent.per_token(1e-6), _priced(run, exchanges, gateways, spent.seconds["Redis"])


def _priced(run: Run, exchanges: float, gateways: int, measured: float) -> dict[str, float]:
    """The processor time of the pool's server in a run, and the time that the simulator's price gives for it, if each
    exchange commits tokens of all streams, and each gateway reads events as often as it may."""
    price, streams, each = Price(), len(run.answers), run.tokens / exchanges
    commits = min(streams, each)
    reads = min(gateways, commits) * min(exchanges, run.seconds / PAUSE)
    seconds = streams * price.submit + exchanges * price.seconds(commits, each - commits) + reads * price.read
    return {
        "exchanges": exchanges,
        "tokens of an exchange": each,
        "measured, s": measured,
        "by the price, s": seconds,
        "measured / price": measured / seconds,
    }


def _lone(server: OrcaServer) -> dict[str, dict[str, float]]:
    """The time to first token of a lone request, and its parts."""
    before = server.metrics()
    first, health = asyncio.run(_first_tokens(server.url))
    means = _means(before, server.metrics())
    return {
        FIRST_TOKEN: _median_and_p99(first),
        "of it HTTP both ways (`/health`)": _median_and_p99(health),
        "of it one iteration with its call of the engine": {"mean": means["orca:iteration_seconds"] * 1e3},
        "an exchange; claim and commit are one each": {"mean": means["orca:exchange_seconds"] * 1e3},
    }


async def _first_tokens(url: str) -> tuple[list[float], list[float]]:
    first, health = [], []
    async with aiohttp.ClientSession(url) as session:
        for _ in range(LONE):
            began = time.perf_counter()
            async with session.get("/health") as response:
                await response.read()
            health.append(time.perf_counter() - began)
            first.append((await OverHttp(session).ask(_request(4))).ttft)
    return first, health


def _median_and_p99(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds) * 1e3, "p99": statistics.quantiles(seconds, n=100)[98] * 1e3}


def _means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The mean of each histogram of seconds, over the time between two readings."""
    names = [name.removesuffix("_sum") for name in after if name.endswith("_seconds_sum")]
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    return {name: change[f"{name}_sum"] / max(1.0, change[f"{name}_count"]) for name in names}
