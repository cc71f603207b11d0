"""Commands: sends commands to the server over connections of redis-py, without its client.

The client adds bookkeeping to every command that costs several times what the command does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
import redis.asyncio as redis
from redis import exceptions

FREE_TIMEOUT = 20.0  # seconds to wait for a free connection


class Commands:
    """Runs each command on a connection that no other command uses at that time; at most `connections` at once."""

    def __init__(self, pool: redis.ConnectionPool, connections: int) -> None:
        """`pool` only makes the connections. They have no timeouts for reads and writes."""
        self._pool = pool
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Any] = []  # connections, the one used last at the end
        self._all: set[Any] = set()

    async def run(self, timeout: float, *args: str | bytes | int) -> Any:
        """Send a command once and return the reply.

        Raises the errors of redis-py, and TimeoutError after `timeout` seconds, or if no connection becomes free.
        """
        if self._free.locked():
            async with asyncio.timeout(FREE_TIMEOUT):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            async with asyncio.timeout(timeout):
                return await self._run(hiredis.pack_command(args))  # type: ignore[arg-type]
        finally:
            self._free.release()

    async def _run(self, packed: bytes) -> Any:
        connection = self._idle.pop() if self._idle else self._make()
        keep = False
        try:
            if connection.is_connected and await connection.can_read():  # the server has closed it
                await connection.disconnect()
            await connection.send_packed_command(packed, check_health=False)  # connects if it is not connected
            try:
                reply = await connection.read_response()
            except exceptions.ResponseError:
                keep = connection.is_connected
                raise
            keep = True
            return reply
        finally:
            if keep:
                self._idle.append(connection)
            else:
                self._all.discard(connection)

    def _make(self) -> Any:
        connection: Any = self._pool.make_connection()  # type: ignore[no-untyped-call]
        self._all.add(connection)
        return connection

    async def close(self) -> None:
        while self._all:
            await self._all.pop().disconnect()
        self._idle.clear()
