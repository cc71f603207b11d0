"""KeptConnections: sends commands on connections that stay taken out of redis-py's pool between calls.

For every call, redis-py takes a connection out of its pool, looks whether its socket can be read, starts a task to
write, and records figures about all of it. For a call per token of a stream this takes longer than the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis import exceptions

LONGEST_WAIT = 20.0  # seconds for a connection, while all are in use

Command = tuple[str | bytes | int, ...]


class KeptConnections:
    """`pool` is one of redis-py's, without a socket timeout. `most`: the number of calls at a time; None: any.

    `on_error` is awaited with the error of each call that failed, also with an error reply, but not after a
    cancellation. It calls `reopen` if another server may serve now.
    """

    def __init__(self, pool: Any, on_error: Callable[[Exception], Awaitable[None]], most: int | None = None) -> None:
        self._pool = pool
        self._on_error = on_error
        self._slots = asyncio.Semaphore(most) if most else None
        self._kept: list[Any] = []
        self._round = 0  # increments when all connections are to be opened again

    async def pipeline(self, seconds: float, *commands: Command) -> list[Any]:
        """The replies to commands that are sent at once on one connection, as the server sent them, within `seconds`
        once there is a connection for them. Raises the first reply that is an error, what else redis-py raises, and
        TimeoutError."""
        if self._slots is None:
            return await self._timed(seconds, commands)
        if self._slots.locked():
            async with asyncio.timeout(LONGEST_WAIT):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            return await self._timed(seconds, commands)
        finally:
            self._slots.release()

    async def reopen(self) -> None:
        """Close all connections, those in use after their calls. The next calls open new ones."""
        self._round += 1
        while self._kept:
            await self._drop(self._kept.pop())
        await self._pool.disconnect(inuse_connections=False)  # those that redis-py's own calls have opened

    async def _timed(self, seconds: float, commands: tuple[Command, ...]) -> list[Any]:
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(commands)
        except (exceptions.RedisError, OSError) as error:  # OSError: also TimeoutError
            await self._on_error(error)
            raise

    async def _exchange(self, commands: tuple[Command, ...]) -> list[Any]:
        round = self._round
        connection = await self._take()
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            replies = [await _reply(connection) for _ in commands]
        except BaseException:  # a reply may still arrive
            await self._drop(connection)
            raise
        if round == self._round:
            self._kept.append(connection)
        else:
            await self._drop(connection)
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError):
                raise reply
        return replies

    async def _take(self) -> Any:
        while self._kept:
            connection = self._kept.pop()
            if _is_open(connection):
                return connection
            await self._drop(connection)
        return await self._pool.get_connection()

    async def _drop(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)


async def _reply(connection: Any) -> Any:
    """The next reply; an error reply is returned, because replies may follow it."""
    try:
        return await connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _is_open(connection: Any) -> bool:
    """Whether the server has not closed it, as far as the event loop has noticed. redis-py tells it by a read only."""
    return connection.is_connected and not (connection._reader.at_eof() or connection._writer.is_closing())
