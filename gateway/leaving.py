"""Telling the pool that nobody here follows a request any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.background import start
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool

TRIES, PAUSE = 60, 1.0  # an outage of the pool must not keep an unwanted request running

log = logging.getLogger(__name__)


class Leaving:
    """`follows` says whether this gateway has a follower of a request (again)."""

    def __init__(self, pool: RequestPool, gateway: str, follows: Callable[[str], bool]) -> None:
        self._pool = pool
        self._gateway = gateway
        self._follows = follows
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def leave(self, request: str) -> None:
        """Detach from a request, in the background, unless it is followed."""
        if not self._stopped and request not in self._tasks:
            self._tasks[request] = start(self._detach(request), f"leaving {request}")

    async def settled(self, request: str) -> None:
        """Return when no detaching is under way that could overtake an attach. Call it as a follower of the request."""
        while task := self._tasks.get(request):
            await asyncio.wait([task])

    async def stop(self) -> None:
        """The gateway goes: what it follows from now on is left to the pool, which knows that it went."""
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=PAUSE)
        for task in self._tasks.values():
            task.cancel()

    async def _detach(self, request: str) -> None:
        try:
            for _ in range(TRIES):
                if self._follows(request):
                    return None
                try:
                    return await self._pool.unlisten(self._gateway, request)
                except PoolUnavailable:
                    pass
                except Exception:
                    log.exception("leaving request %s failed; it is tried again", request)
                await asyncio.sleep(PAUSE)
            log.warning("request %s could not be left: the pool is away", request)
        finally:
            del self._tasks[request]
