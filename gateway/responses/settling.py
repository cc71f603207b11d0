"""A background response has no follower, so its gateway stays with it until the pool's server has it for good.

A server that syncs its file each second may lose a request that it took just before it died. Followed here, the request
is put back then, as one is that a client waits for.
"""

from __future__ import annotations

import asyncio
import contextlib

from gateway.errors import ApiError, GatewayStops
from gateway.responses.stored import StoredResponse
from services.background import start
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool

SETTLED = 3.0  # seconds after which a server that lives has written what it took
PAUSE = 1.0  # seconds between looks whether one that was away has it


def settle(stored: StoredResponse, pool: RequestPool) -> None:
    """Close the response when it has ended, or the pool holds it in a while; until then it is followed."""
    start(_settle(stored, pool), f"following {stored.asked.id}")


async def _settle(stored: StoredResponse, pool: RequestPool) -> None:
    now = asyncio.get_running_loop().time
    with stored, contextlib.suppress(ApiError, GatewayStops):
        await stored.read(now() + SETTLED)
        while not (stored.ended or await _holds(pool, stored.asked.id)):
            await stored.read(now() + PAUSE)


async def _holds(pool: RequestPool, id: str) -> bool:
    try:
        return await pool.group(id) is not None
    except PoolUnavailable:
        return False
