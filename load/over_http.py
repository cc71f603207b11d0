"""A trace over HTTP: each request as a stream from a running server, timed as its user sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from load.workloads import Job
from services.client.sse import Answer, Event
from services.client.streaming import follow, open_session


@dataclass(slots=True)
class Stream:
    """What came of one job; times in seconds from the moment it was sent."""

    answer: Answer = field(default_factory=Answer)
    first_token: float = 0.0
    end: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return self.answer.choices[0].token_ids


async def stream(session: aiohttp.ClientSession, job: Job) -> Stream:
    """Run `job` greedily with EOS ignored. Raises StreamError for anything but a whole stream."""
    body = {
        "prompt": job.prompt,
        "max_tokens": job.max_new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    got, began = Stream(), time.perf_counter()

    def arrived(event: Event) -> None:
        if not got.first_token and got.token_ids:
            got.first_token = time.perf_counter() - began

    await follow(session, "/v1/completions", body, got.answer, arrived)
    got.end = time.perf_counter() - began
    got.answer.check(usage=False)
    return got


async def run_trace(url: str, jobs: list[Job]) -> tuple[float, list[Stream]]:
    """All jobs at once: seconds until the last has ended, and their streams."""
    async with open_session(url) as session:
        began = time.perf_counter()
        streams = await asyncio.gather(*(stream(session, job) for job in jobs))
        return time.perf_counter() - began, list(streams)
