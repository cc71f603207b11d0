"""A process's lifeline: connections that it holds open for as long as it lives.

Whoever must know of a process's death connects to its lifeline; the kernel closes the connection within milliseconds
of the process's end, whatever ended it, on this node or another. A process that is stopped or busy keeps it open.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time

from services.background import start_thread

UNREACHED = 1.0  # seconds between tries to reach a lifeline on another node
SILENT_NODE = 3  # seconds without an answer after which a node counts as gone


class Lifeline:
    """Accepts connections on `host`, at `address` (`<host>:<port>`), and holds them until this process ends."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._selector.register(self._listener, selectors.EVENT_READ)
        start_thread(self._hold, "lifeline")  # others could not tell this process from a dead one

    @property
    def watchers(self) -> int:
        """How many watch it."""
        return len(self._selector.get_map()) - 1

    def _hold(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    _drop_if_closed(self._selector, key.fileobj)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            _notice_a_silent_node(connection)
        except OSError:  # out of file descriptors, or gone again
            time.sleep(UNREACHED)
            return
        self._selector.register(connection, selectors.EVENT_READ)


def _drop_if_closed(selector: selectors.BaseSelector, connection: object) -> None:
    assert isinstance(connection, socket.socket)
    try:
        open_still = connection.recv(1024)
    except OSError:
        open_still = b""
    if not open_still:
        selector.unregister(connection)
        connection.close()


async def watch(address: str, here: str) -> None:
    """Return when the process with the lifeline at `address` is dead, seen from a process on the node `here`.

    A refused connection means death on this very node; from another node it may be a firewall, so it is tried again,
    for ever: the caller has a second way to learn of the death, a slower one.
    """
    host, _, port = address.rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            break
        except OSError as error:
            if host == here and isinstance(error, ConnectionRefusedError):
                return
            await asyncio.sleep(UNREACHED)
    try:
        _notice_a_silent_node(writer.get_extra_info("socket"))
        await reader.read()
    except OSError:
        return  # reset
    finally:
        writer.close()


def _notice_a_silent_node(connection: socket.socket) -> None:
    """Let the kernel ask each second whether the other node is there; a stopped process's node answers."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, SILENT_NODE),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
