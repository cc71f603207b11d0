"""Two tenants: the time to first token of one that sends a request per second while the other floods the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from load.options import Options, model_folder
from load.over_http import OverHttp
from load.report import table
from load.server import OrcaServer
from load.trace import Answer, Request
from load.workloads import any_prompt
from services.client.streaming import open_session

KEYS = {"key-a": "a", "key-b": "b"}
SETTINGS = (  # flags that bound an iteration, in addition to the defaults
    "",
    "--max-batch-size 8",
    "--tbt-target 0.03 --token-budget 256",
    "--max-batch-size 8 --token-budget 64",
)


@dataclass(frozen=True, slots=True)
class Size:
    """B sends `requests` requests, one every `every` seconds. A's flood has `flood` requests, all sent `lead` seconds
    earlier. Each has `prompt` tokens in and `least` to `most` out. All prompts differ, so that no prefix is cached."""

    requests: int = 25
    every: float = 1.0
    flood: int = 2000
    lead: float = 3.0
    prompt: int = 64
    least: int = 4
    most: int = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The answers to B, and how many of A's requests had ended by then."""

    answers: list[Answer]
    others: int


def run(options: Options) -> str:
    size = Size()
    common = ["--model", str(model_folder(options)), "--device", options.device, "--dtype", options.dtype]
    common += ["--api-keys", json.dumps(KEYS)]
    lines: list[list[str]] = []
    for setting in SETTINGS:
        flags = [*common, *setting.split()]
        with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
            seen = asyncio.run(measure(server.url, size, alone=not setting))
        lines += rows(setting, seen)
    head = ("settings", "", "median", "max", "median, times the first", "to the last token, median", "of A's ended")
    return (
        f"B: {size.requests} requests, one each {size.every:g} s ({size.prompt} tokens in, {size.least} to {size.most} "
        f"out). A: the same, or {size.flood:,} such requests at once. Seconds to B's first token.\n\n"
        + table(head, lines)
    )


async def measure(url: str, size: Size, alone: bool) -> dict[str, Seen]:
    """What B saw; `alone`: also if B and A are one tenant."""
    async with open_session(url, "key-a") as a, open_session(url, "key-b") as b:
        await regular(b, size, 3, "warm up")
        both = await asyncio.gather(regular(b, size, size.requests, "b"), regular(a, size, size.requests, "a", 0.5))
        seen = {"A sends as much as B": Seen(both[0], len(both[1]))}
        async with flooded(a, size) as ended:
            streams = await regular(b, size, size.requests, "behind")
            seen["A floods, two tenants"] = Seen(streams, len(ended))
        if alone:
            async with flooded(b, size) as ended:
                streams = await regular(b, size, size.requests, "first come")
                seen["A floods, one tenant: first come, first served"] = Seen(streams, len(ended))
        return seen


async def regular(
    session: aiohttp.ClientSession, size: Size, count: int, name: str, after: float = 0.0
) -> list[Answer]:
    """Send requests at a fixed pace, whether earlier ones have ended or not."""
    server = OverHttp(session)

    async def one(number: int) -> Answer:
        await asyncio.sleep((number + after) * size.every)
        return await server.ask(request(size, f"{name} {number}"))

    return list(await asyncio.gather(*map(one, range(count))))


@contextlib.asynccontextmanager
async def flooded(session: aiohttp.ClientSession, size: Size) -> AsyncIterator[list[Answer]]:
    """Send `flood` requests at once and yield those that have ended; at the end the others are cancelled."""
    ended: list[Answer] = []
    server = OverHttp(session)

    async def one(number: int) -> None:
        ended.append(await server.ask(request(size, f"flood {number}")))

    tasks = [asyncio.create_task(one(number)) for number in range(size.flood)]
    try:
        await asyncio.sleep(size.lead)
        yield ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(size.lead)


def request(size: Size, name: str) -> Request:
    draw = random.Random(name)
    return Request(any_prompt(size.prompt, draw.getrandbits(32)), draw.randint(size.least, size.most))


def rows(setting: str, seen: dict[str, Seen]) -> list[list[str]]:
    base = median(answer.ttft for answer in next(iter(seen.values())).answers)
    lines = []
    for name, one in seen.items():
        first = [answer.ttft for answer in one.answers]
        end = [answer.latency for answer in one.answers]
        cells = [f"{median(first):.3f}", f"{max(first):.3f}", f"{median(first) / base:.2f}"]
        lines.append([setting or "default", name, *cells, f"{median(end):.2f}", str(one.others)])
    return lines
