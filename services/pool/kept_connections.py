"""KeptConnections: sends commands on connections that stay taken out of redis-py's pool between calls.

For every call, redis-py takes a connection out of its pool, looks whether its socket can be read, starts a task to
write, and records figures about all of it. For a call per token of a stream this takes longer than the call itself.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions


class KeptConnections:
    """`pool` is one of redis-py's, without a socket timeout: the caller limits the time of a call."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._kept: list[Any] = []
        self._waiting = 0  # calls that wait for the pool to have a connection

    async def call(self, *args: str | bytes | int) -> Any:
        """The reply to a command, as the server sent it. Raises what redis-py raises."""
        connection = await self._take()
        try:
            await connection.send_command(*args)
            reply = await connection.read_response()
        except exceptions.ResponseError:  # a reply too
            await self._keep(connection)
            raise
        except BaseException:  # its reply may still arrive
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise
        await self._keep(connection)
        return reply

    async def _take(self) -> Any:
        while self._kept:
            connection = self._kept.pop()
            if _is_open(connection):
                return connection
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
        self._waiting += 1
        try:
            return await self._pool.get_connection()
        finally:
            self._waiting -= 1

    async def _keep(self, connection: Any) -> None:
        if self._waiting:
            await self._pool.release(connection)
        else:
            self._kept.append(connection)


def _is_open(connection: Any) -> bool:
    """Whether the server has not closed it, as far as the event loop has noticed. redis-py tells it by a read only."""
    return connection.is_connected and not (connection._reader.at_eof() or connection._writer.is_closing())
