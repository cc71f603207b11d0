"""The plane alone: HTTP, gateway, pool, scheduler and Ray around the null engine, which answers at once."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping

import aiohttp

from load.evaluation.bench import Bench, Found, spend_over_http
from load.over_http import OverHttp, run_over_http
from load.report import Figures, quantile
from load.server import OrcaServer
from load.trace import Request

HELP = "HTTP, gateways, pool, scheduler and Ray around an engine that answers at once"
LONE = 300
PROMPT = 32
TOKENS = {1: 1024, 32: 512, 128: 256, 1000: 64}  # of each stream, by the number of streams
FLAGS = ("--null-engine", "--max-batch-size", "1024", "--kv-blocks", "100000", "--gateways", "2")
FIRST, RATES, SPENT = "A lone request, ms", "Streams at once", "Processor time of a token, and of a chunk in all, µs"


def measure(bench: Bench) -> Found:
    figures: Figures = {FIRST: {}, RATES: {}, SPENT: {}}
    with bench.server(*FLAGS) as server:
        asyncio.run(run_over_http(server.url, [_request(32)] * 64))  # warm up
        figures[FIRST] = _lone(server, bench.shorter(LONE))
        for streams, most in TOKENS.items():
            tokens = bench.shorter(most, 8)
            name = f"{streams:,} stream{'s' * (streams > 1)} of {tokens:,} tokens"
            figures[RATES][name], figures[SPENT][name] = _streams(server, [_request(tokens)] * streams)
    return Found(figures)


def _request(tokens: int) -> Request:
    return Request([5] * PROMPT, tokens)


def _streams(server: OrcaServer, requests: list[Request]) -> tuple[dict[str, float], dict[str, float]]:
    """Rates and times of these streams, and the processor time of their tokens."""
    before = server.metrics()
    spent = spend_over_http(server, requests)
    run, means = spent.run, _means(before, server.metrics())
    rates = {
        "tokens/s": run.throughput,
        "chunks/s": spent.chunks / run.seconds,
        "tokens of a chunk": run.tokens / spent.chunks,
        "TTFT, ms": statistics.median(answer.ttft for answer in run.answers) * 1e3,
        "iteration, ms": means["orca:iteration_seconds"] * 1e3,
        "exchange, ms": means["orca:exchange_seconds"] * 1e3,
        "others, cores": spent.others,
    }
    return rates, spent.per_token(1e-6)


def _lone(server: OrcaServer, count: int) -> dict[str, dict[str, float]]:
    """The time to first token of a lone request, and its parts."""
    before = server.metrics()
    first, health = asyncio.run(_first_tokens(server.url, count))
    means = _means(before, server.metrics())
    return {
        "time to first token": _median_and_p99(first),
        "of it HTTP both ways (`/health`)": _median_and_p99(health),
        "of it one iteration with its call of the engine": {"mean": means["orca:iteration_seconds"] * 1e3},
        "an exchange; claim and commit are one each": {"mean": means["orca:exchange_seconds"] * 1e3},
    }


async def _first_tokens(url: str, count: int) -> tuple[list[float], list[float]]:
    first, health = [], []
    async with aiohttp.ClientSession(url) as session:
        for _ in range(count):
            began = time.perf_counter()
            async with session.get("/health") as response:
                await response.read()
            health.append(time.perf_counter() - began)
            first.append((await OverHttp(session).ask(_request(4))).ttft)
    return first, health


def _median_and_p99(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds) * 1e3, "p99": quantile(seconds, 0.99) * 1e3}


def _means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The mean of each histogram of seconds, over the time between two readings."""
    names = [name.removesuffix("_sum") for name in after if name.endswith("_seconds_sum")]
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    return {name: change[f"{name}_sum"] / max(1.0, change[f"{name}_count"]) for name in names}
