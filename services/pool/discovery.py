"""Discovery: which pools a server holds, for operators, who need not know the model that names a pool."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from services.pool.connection import Connection
from services.pool.pool import LAYOUT, RequestPool

AT_ONCE = 1000  # keys that the server looks at in one call
_META = re.compile(r"orca:\{(.+)\}:meta")  # a key that every pool has


async def pools_at(url: str) -> AsyncIterator[RequestPool]:
    """Yield the pools in the server at `url` whose keys this build can read, by name; closed when the next one is asked
    for. Raises PoolUnavailable."""
    for name in await _names(url):
        pool = RequestPool(url, name)
        try:
            yield pool
        finally:
            await pool.close()


async def _names(url: str) -> list[str]:
    server = Connection(url)
    try:
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, keys = await server.command("SCAN", cursor, "MATCH", "orca:{*}:meta", "COUNT", AT_ONCE)
            found |= {match[1] for key in keys if (match := _META.fullmatch(key.decode()))}
            if cursor == b"0":
                return sorted(name for name in found if f".{LAYOUT}." in name)
    finally:
        await server.close()
