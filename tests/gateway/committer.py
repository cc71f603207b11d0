"""A pool without an engine: the test commits tokens and loses data."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.pool_client.event_reader import EventBuffer, EventReader
from services.messages import Commit, End, EngineFigures, Exchange, NewSequence, Room, Submission, TokenEvent
from services.pool.pool import RequestPool
from services.requests import FinishReason, SamplingParams

FIGURES = EngineFigures("tiny", 512, 25, 16, 278, "none")
END = End(FinishReason.LENGTH)


class Committer:
    """A seat without an engine: the test chooses the tokens to commit."""

    def __init__(self, pool: RequestPool) -> None:
        self.pool = pool
        self._call = 0

    async def commit(self, *commits: Commit) -> None:
        if self._call == 0:
            self._epoch = (await self.pool.acquire("seat", "test", 60)).epoch
            await self._exchange([])
        await self._exchange(list(commits))

    async def _exchange(self, commits: list[Commit]) -> None:
        self._call += 1
        figures = FIGURES if self._call == 1 else None
        reply = await self.pool.exchange(
            Exchange("seat", self._epoch, self._call, commits, Room(99, 9999, 16), figures=figures)
        )
        assert reply.owned


async def lose_all(pool: RequestPool) -> None:
    """Delete all keys, as if the pool's server had restarted without its data."""
    keys = [key async for key in pool._server._scripts.scan_iter(f"{pool._prefix}*")]
    await pool._server.command("DEL", *keys)


def submission(request: str, choices: int = 1, **fields: Any) -> Submission:
    sampling = SamplingParams(max_new_tokens=10, logprobs=fields.pop("logprobs", None))
    sequences = [NewSequence(f"{request}/{i}", [1, 2, 3], sampling) for i in range(choices)]
    return Submission(request, "gw", sequences, **fields)


async def submit(pool: RequestPool, reader: EventReader, request: str, choices: int = 1, **fields: Any) -> EventBuffer:
    """Submit and follow a request as a gateway does."""
    new = submission(request, choices, **fields)
    buffer = reader.follow(request, [s.id for s in new.sequences], new)
    await pool.submit(new)
    buffer.submitted = True
    return buffer


async def take(buffer: EventBuffer, count: int) -> list[tuple[int, int | None]]:
    events: list[TokenEvent] = []
    async with asyncio.timeout(10):
        while len(events) < count:
            events += await buffer.take()
    return [(event.index, event.token) for event in events]
