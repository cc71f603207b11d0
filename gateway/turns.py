"""Turns: reads of stored requests, so many of each tenant at once.

A request that is followed from its first token is read and written whole, by each follower. Without turns the followers
of one tenant would take all connections to the pool, and hold all that they read in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Self

from gateway.errors import ApiError, Kind

AT_ONCE = 4  # of a tenant: a quarter of the connections to the pool
IN_LINE = 1024  # of a tenant, those at work included


class Turn:
    """It lasts until `end`, or for a `with`."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end: Callable[[], None] | None = on_end

    def end(self) -> None:
        """May be called again."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Turns:
    """In the order in which they were asked for, each tenant for itself."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()  # turns that have not ended, those in line included
        self._places: dict[str, asyncio.Semaphore] = {}

    async def take(self, tenant: str) -> Turn:
        """Raises ApiError where too many of the tenant wait."""
        asked = self._asked[tenant]
        if asked >= IN_LINE:
            text = f"{asked} reads of stored requests of yours wait at this gateway, its most; try again later."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)
        self._asked[tenant] += 1
        places = self._places.setdefault(tenant, asyncio.Semaphore(AT_ONCE))
        try:
            await places.acquire()
        except BaseException:
            self._leave(tenant)
            raise

        def end() -> None:
            places.release()
            self._leave(tenant)

        return Turn(end)

    def _leave(self, tenant: str) -> None:
        self._asked[tenant] -= 1
        if not self._asked[tenant]:
            del self._asked[tenant], self._places[tenant]
