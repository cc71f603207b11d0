"""Streams of completions from a running server, timed as its user sees them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
import orjson

from load.workloads import Job

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class Stream:
    """What came of one job; times in seconds from the moment it was sent."""

    token_ids: list[int] = field(default_factory=list)
    first_token: float = 0.0
    end: float = 0.0
    chunks: int = 0


async def stream(session: aiohttp.ClientSession, job: Job) -> Stream:
    """Run `job` greedily with EOS ignored. Raises RuntimeError for anything but a whole stream."""
    body = {
        "prompt": job.prompt,
        "max_tokens": job.max_new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    got, began = Stream(), time.perf_counter()
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(_DONE):
                got.end = time.perf_counter() - began
                return got
            if line.startswith(_DATA):
                _take(got, orjson.loads(line[len(_DATA) :]), began)
    raise RuntimeError(f"a stream ended after {len(got.token_ids)} tokens without [DONE]")


def _take(got: Stream, event: dict[str, object], began: float) -> None:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    choices = event["choices"]
    assert isinstance(choices, list)
    tokens = [token for choice in choices for token in choice["token_ids"]]
    if tokens and not got.token_ids:
        got.first_token = time.perf_counter() - began
    got.token_ids += tokens
    got.chunks += 1


async def run_trace(url: str, jobs: list[Job]) -> tuple[float, list[Stream]]:
    """All jobs at once: seconds until the last has ended, and their streams."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        began = time.perf_counter()
        streams = await asyncio.gather(*(stream(session, job) for job in jobs))
        return time.perf_counter() - began, list(streams)
