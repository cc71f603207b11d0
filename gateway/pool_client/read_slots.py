"""ReadSlots: limits the concurrent reads of stored requests per tenant.

A request that is followed from its first token is read and written as a whole by each follower. Without a limit, the
followers of one tenant would take all connections to the pool and hold everything that they read in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Self

from gateway.errors import ApiError, Kind

AT_ONCE = 4  # per tenant: a quarter of the connections to the pool
MOST_WAITING = 1024  # per tenant, including current reads


class ReadSlot:
    """Permission to read until `release`, or for a `with`."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Can be called repeatedly."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ReadSlots:
    """Slots are acquired in the order of the calls, separately for each tenant."""

    def __init__(self) -> None:
        self._reads: Counter[str] = Counter()  # current and waiting reads by tenant
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def acquire(self, tenant: str) -> ReadSlot:
        """Raises ApiError if too many reads of the tenant wait."""
        reads = self._reads[tenant]
        if reads >= MOST_WAITING:
            text = f"{reads} reads of stored requests of yours wait at this gateway, the maximum; try again later."
            raise ApiError(Kind.TOO_MANY_FOLLOWERS, text)
        self._reads[tenant] += 1
        slots = self._slots.setdefault(tenant, asyncio.Semaphore(AT_ONCE))
        try:
            await slots.acquire()
        except BaseException:
            self._forget(tenant)
            raise

        def release() -> None:
            slots.release()
            self._forget(tenant)

        return ReadSlot(release)

    def _forget(self, tenant: str) -> None:
        self._reads[tenant] -= 1
        if not self._reads[tenant]:
            del self._reads[tenant], self._slots[tenant]
