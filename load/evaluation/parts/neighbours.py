"""What one user feels of others: a long prompt beside streams, and a tenant that floods the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
from collections.abc import AsyncIterator

import aiohttp

from load.evaluation.bench import Bench, Found
from load.over_http import OverHttp
from load.report import Table
from load.trace import Answer, Request
from load.workloads import any_prompt
from services.client.streaming import open_session

HELP = "streams while a prompt of 6,000 tokens arrives; a tenant's first tokens while another one floods the server"
STREAMS, PROMPT, TOKENS = 8, 64, 640  # they outlast the long prompt
LONG, ANSWER = 6000, 8
BEFORE = 2.0  # seconds of the streams alone, from when all have a token
FLOOD = 2000  # requests of tenant A at once
LEAD = 3.0  # seconds between the flood and tenant B's first request
PACED = 25  # requests of B, one a second
TENANTS = {"key-a": "a", "key-b": "b"}

GAPS = f"{STREAMS} streams of {TOKENS} tokens: ms between tokens while a prompt of {LONG:,} arrives, s to first tokens"


def measure(bench: Bench) -> Found:
    paced, flood = bench.shorter(PACED), bench.shorter(FLOOD)
    with bench.server("--no-prefix-caching") as server:  # otherwise the prompt would be computed once only
        gaps = asyncio.run(_long_prompt(server.url))
    # without a bound on the wait: behind a flood of its own tenant a request would be refused
    with bench.server("--api-keys", json.dumps(TENANTS), "--max-queue-wait", "0") as server:
        first = asyncio.run(_tenants(server.url, paced, flood))
    title = f"Seconds to B's first token, {paced} requests, one each second, beside A's flood of {flood:,}"
    return Found({GAPS: {"default settings": gaps}, title: first})


async def _long_prompt(url: str) -> dict[str, float]:
    async with open_session(url) as session:
        system = OverHttp(session)
        await system.ask(Request(any_prompt(PROMPT, STREAMS), ANSWER))  # warm up
        streams = [Request(any_prompt(PROMPT, number), TOKENS) for number in range(STREAMS)]
        asked = [asyncio.create_task(system.ask(request)) for request in streams]
        await asyncio.sleep(BEFORE)
        long = await system.ask(Request(any_prompt(LONG, STREAMS + 1), ANSWER))
        return cells(await asyncio.gather(*asked), long)


def cells(streams: list[Answer], long: Answer) -> dict[str, float]:
    """The gaps of the streams before the long prompt arrives and until it has a token; the waits for first tokens."""
    arrived, first = long.arrived, long.times[0]
    # tokens of one chunk come at the same time
    alone = [gap for stream in streams for gap in stream.gaps(stream.times[0], arrived) if gap]
    meanwhile = [gap for stream in streams for gap in stream.gaps(arrived, first) if gap]
    return {
        "alone, median": statistics.median(alone) * 1e3,
        "meanwhile, median": statistics.median(meanwhile) * 1e3,
        "longest": max(meanwhile) * 1e3,
        "streams that ended before": float(sum(stream.times[-1] < first for stream in streams)),
        "TTFT of the prompt, s": long.ttft,
        "TTFT of the streams, s": statistics.median(stream.ttft for stream in streams),
    }


async def _tenants(url: str, paced: int, flood: int) -> Table:
    async with open_session(url, "key-a") as a, open_session(url, "key-b") as b:
        await _paced(b, 3, "warm up")
        quiet = (await asyncio.gather(_paced(b, paced, "b"), _paced(a, paced, "a")))[0]
        async with _flooded(a, flood):
            two = await _paced(b, paced, "behind")
        async with _flooded(b, flood):
            one = await _paced(b, paced, "first come")
    base = statistics.median(answer.ttft for answer in quiet)
    rows = {"A sends as much as B": quiet, "A floods, two tenants": two, "A floods, one tenant": one}
    return {name: _waits(answers, base) for name, answers in rows.items()}


def _waits(answers: list[Answer], base: float) -> dict[str, float]:
    first = [answer.ttft for answer in answers]
    return {
        "median": statistics.median(first),
        "longest": max(first),
        "median, times the first": statistics.median(first) / base,
        "to the last token, median": statistics.median(answer.latency for answer in answers),
    }


async def _paced(session: aiohttp.ClientSession, count: int, name: str) -> list[Answer]:
    """Send a request each second, whether earlier ones have ended or not."""
    server = OverHttp(session)

    async def one(number: int) -> Answer:
        await asyncio.sleep(number)
        return await server.ask(_short(f"{name} {number}"))

    return list(await asyncio.gather(*map(one, range(count))))


@contextlib.asynccontextmanager
async def _flooded(session: aiohttp.ClientSession, flood: int) -> AsyncIterator[None]:
    """Send so many requests at once; at the end those that have not ended are cancelled."""
    server = OverHttp(session)
    tasks = [asyncio.create_task(server.ask(_short(f"flood {number}"))) for number in range(flood)]
    try:
        await asyncio.sleep(LEAD)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(LEAD)


def _short(name: str) -> Request:
    """Prompts that all differ, so that no prefix is cached, with 4 to 20 tokens out."""
    draw = random.Random(name)
    return Request(any_prompt(PROMPT, draw.getrandbits(32)), draw.randint(4, 20))
