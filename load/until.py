"""Waiting for what nobody tells: what another process does, or a task that sets no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(happened: Callable[[], bool], seconds: float = 60.0, every: float = 0.05) -> None:
    """Look `every` so many seconds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(every)
