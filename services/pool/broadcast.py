"""Broadcast: messages to whoever listens at the moment, through the pool's server. Nothing of them is stored.

It has connections of its own, so it never makes a call of the pool wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from redis import exceptions

from services.errors import PoolUnavailable
from services.pool.clients import close_client, open_clients

TIMEOUT = 2.0  # seconds for a call
SILENCE = 30.0  # seconds without a message after which a listener asks whether its connection is alive


class Broadcast:
    """Channels in the name space of a pool. Opens its connections at the first use.

    Raises PoolUnavailable if the server cannot be reached, or does not allow its user to publish or subscribe. A
    message is lost if the connection of its sender or of a listener breaks.
    """

    def __init__(self, url: str, prefix: str) -> None:
        """`prefix` is that of the pool's keys; the names of its channels begin with it too."""
        (self._client,) = open_clients(url, 1)
        self._prefix = prefix

    async def publish(self, channel: str, message: bytes) -> None:
        with _translated(f"PUBLISH {channel}"):
            async with asyncio.timeout(TIMEOUT):
                await self._client.execute_command("PUBLISH", self._prefix + channel, message)

    async def listen(self, channel: str) -> AsyncIterator[bytes]:
        """Yield the messages that are published from the first call on, until the connection breaks."""
        subscriber = self._client.pubsub()
        try:
            with _translated(f"SUBSCRIBE {channel}"):
                async with asyncio.timeout(TIMEOUT):
                    await subscriber.subscribe(self._prefix + channel)
                asked = False
                while True:
                    message = await subscriber.get_message(timeout=SILENCE)
                    if message is None:
                        if asked:
                            raise PoolUnavailable(f"SUBSCRIBE {channel}: the connection is silent for {SILENCE:.0f} s")
                        await subscriber.ping()
                    elif message["type"] == "message":
                        yield message["data"]
                    asked = message is None
        finally:
            await subscriber.aclose()

    async def close(self) -> None:
        await close_client(self._client)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:  # OSError: also TimeoutError
        raise PoolUnavailable(f"{what}: {str(error) or type(error).__name__}") from error
