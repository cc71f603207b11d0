"""The plane alone: HTTP, gateway, pool, scheduler and Ray around the null engine, which answers at once."""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from load.options import Options
from load.over_http import OverHttp, run_over_http
from load.report import table
from load.server import OrcaServer
from load.trace import Request

LONE = 300
STREAMS = (1, 32, 128)
TOKENS = 256  # of each stream


def run(options: Options) -> str:
    flags = ["--model", options.model, "--null-engine", "--max-batch-size", "256", "--kv-blocks", "100000"]
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        asyncio.run(run_over_http(server.url, [Request([5] * 32, 32)] * 32))  # warm up
        return lone(server) + "\n\n" + many(server)


def lone(server: OrcaServer) -> str:
    """The time to first token of a lone request, and its parts."""
    before = server.metrics()
    first, health = asyncio.run(_lone(server.url))
    spent = _means(before, server.metrics())
    rows = [
        ["time to first token", _ms(statistics.median(first)), _ms(statistics.quantiles(first, n=100)[98])],
        [
            "of it HTTP both ways (`/health`)",
            _ms(statistics.median(health)),
            _ms(statistics.quantiles(health, n=100)[98]),
        ],
        ["of it one iteration with its way to the engine and back (mean)", _ms(spent["orca:iteration_seconds"]), ""],
        ["an exchange (mean); claim and commit are one each", _ms(spent["orca:exchange_seconds"]), ""],
    ]
    return f"A lone request, {LONE} times, 32 tokens in:\n\n" + table(["ms", "median", "p99"], rows)


async def _lone(url: str) -> tuple[list[float], list[float]]:
    first, health = [], []
    async with aiohttp.ClientSession(url) as session:
        for _ in range(LONE):
            began = time.perf_counter()
            async with session.get("/health") as response:
                await response.read()
            health.append(time.perf_counter() - began)
            first.append((await OverHttp(session).ask(Request([5] * 32, 4))).ttft)
    return first, health


def many(server: OrcaServer) -> str:
    """Tokens per second of concurrent streams, and the processes that spend the time."""
    rows, spent = [], ""
    for count in STREAMS:
        cpu, own, before = server.cpu_seconds(), _own_cpu(), server.metrics()
        run = asyncio.run(run_over_http(server.url, [Request([5] * 32, TOKENS)] * count))
        chunks = sum(answer.chunks for answer in run.answers)
        first = statistics.median(answer.ttft for answer in run.answers)
        means = _means(before, server.metrics())
        cells = [f"{run.throughput:,.0f}", f"{chunks / run.seconds:,.0f}", _ms(first)]
        rows.append([count, *cells, *(_ms(means[f"orca:{name}_seconds"]) for name in ("iteration", "exchange"))])
        spent = _cpu_line(cpu, server.cpu_seconds(), _own_cpu() - own, run.tokens)
    head = ["streams", "tokens/s", "chunks/s", "TTFT median, ms", "iteration, ms", "exchange, ms"]
    return f"Streams of {TOKENS} tokens at once:\n\n{table(head, rows)}\n\nCPU per token at {STREAMS[-1]}: {spent}."


def _cpu_line(before: Mapping[str, float], after: Mapping[str, float], client: float, tokens: int) -> str:
    spent = {title: after[title] - before.get(title, 0.0) for title in after} | {"client": client}
    largest = sorted(spent.items(), key=lambda item: -item[1])[:6]
    return ", ".join(f"`{title}` {seconds / tokens * 1e6:.0f} µs" for title, seconds in largest)


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _means(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The mean of each histogram of seconds, over the time between two readings."""
    names = [name.removesuffix("_sum") for name in after if name.endswith("_seconds_sum")]
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    return {name: change[f"{name}_sum"] / max(1.0, change[f"{name}_count"]) for name in names}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
