"""KeptConnections: sends commands on connections that stay taken out of redis-py's pool between calls.

For every call, redis-py takes a connection out of its pool, looks whether its socket can be read, starts a task to
write, and records figures about all of it. For a call per token of a stream this takes longer than the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis import exceptions

LONGEST_WAIT = 20.0  # seconds for a connection, while all are in use


class KeptConnections:
    """`pool` is one of redis-py's, without a socket timeout. `most`: the number of calls at a time; None: any.
    `demoted`: whether an error reply says that another server serves now; then all connections are opened again."""

    def __init__(self, pool: Any, demoted: Callable[[Exception], bool], most: int | None = None) -> None:
        self._pool = pool
        self._demoted = demoted
        self._slots = asyncio.Semaphore(most) if most else None
        self._kept: list[Any] = []

    async def call(self, seconds: float, *args: str | bytes | int) -> Any:
        """The reply to a command, as the server sent it, within `seconds` once there is a connection for it. Raises
        what redis-py raises, and TimeoutError."""
        if self._slots is None:
            return await self._timed(seconds, args)
        if self._slots.locked():
            async with asyncio.timeout(LONGEST_WAIT):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            return await self._timed(seconds, args)
        finally:
            self._slots.release()

    async def _timed(self, seconds: float, args: tuple[str | bytes | int, ...]) -> Any:
        async with asyncio.timeout(seconds):
            connection = await self._take()
            try:
                await connection.send_command(*args)
                reply = await connection.read_response()
            except exceptions.ResponseError as error:  # a reply too
                self._kept.append(connection)
                if self._demoted(error):
                    await self._drop_kept()
                raise
            except BaseException:  # its reply may still arrive
                await self._drop(connection)
                raise
            self._kept.append(connection)
            return reply

    async def _take(self) -> Any:
        while self._kept:
            connection = self._kept.pop()
            if _is_open(connection):
                return connection
            await self._drop(connection)
        return await self._pool.get_connection()

    async def _drop_kept(self) -> None:
        while self._kept:
            await self._drop(self._kept.pop())

    async def _drop(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)


def _is_open(connection: Any) -> bool:
    """Whether the server has not closed it, as far as the event loop has noticed. redis-py tells it by a read only."""
    return connection.is_connected and not (connection._reader.at_eof() or connection._writer.is_closing())
