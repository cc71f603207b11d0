"""Users: so many at once, each of whom asks again as soon as it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from load.simulation.pool import SimulatedPool
from load.simulation.traces import Size


class Users:
    """Use as `async with`: they ask for as long as it lasts, and turn away at its end."""

    def __init__(self, pool: SimulatedPool, count: int, size: Callable[[], Size]) -> None:
        """`size` gives what is asked for next, whoever asks."""
        self._pool = pool
        self._count = count
        self._size = size
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(self._count)]

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            await (await self._pool.ask(self._size()))
