"""The channel between a scheduler and an engine process: a socket that carries iterations and their results.

The scheduler's end is `EngineChannel`; the engine's is `actors.engine_server.EngineServer`. On one node the socket is a
Unix socket, between two nodes a TCP connection. Ray, whose calls are authenticated, hands the scheduler a `Door`: where
to connect, and the secret with which the connection begins. Each message is preceded by its length.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.liveness import enable_keepalive
from services.wire import pack, unpack

SECRET_BYTES = 32
READ_BYTES = 1 << 18
_LENGTH = struct.Struct("!I")
_PEER = struct.Struct("3i")  # struct ucred: process, user, group


@dataclass(frozen=True, slots=True)
class Door:
    """Where an engine process waits for its owner. `host` is empty for a Unix socket, whose abstract name is `name`;
    otherwise `name` is a port."""

    host: str
    name: str
    secret: bytes

    @property
    def address(self) -> tuple[str, int] | str:
        return (self.host, int(self.name)) if self.host else f"\0{self.name}"

    def socket(self) -> socket.socket:
        """A socket that can connect to the address."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.socket(family if self.host else socket.AF_UNIX)


@dataclass(frozen=True, slots=True)
class Order:
    """A packed Iteration to run, with the packed results since the last one, if another rank samples."""

    iteration: bytes
    missed: list[bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """The packed result of an iteration or, if that is None, why this owner's channel ends: `stale` if there is another
    owner, otherwise the engine's exception. Or, between two results, `leave`: the engine has to make room for another
    one."""

    result: bytes | None
    error: str = ""
    stale: bool = False
    leave: bool = False


class Frames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data` completes."""
        self._rest += data
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            end = at + _LENGTH.size + length
            if end > len(self._rest):
                break
            yield bytes(self._rest[at + _LENGTH.size : end])
            at = end
        del self._rest[:at]


def framed(message: Order | Answer) -> bytes:
    body = pack(message)
    return _LENGTH.pack(len(body)) + body


def prepare(connection: socket.socket) -> None:
    """Set up a connected socket of either end. Raises OSError if the process at the other end is another user's."""
    connection.setblocking(False)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        enable_keepalive(connection)
        return
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(peer)
    if user != os.geteuid():
        raise PermissionError(f"the process at the other end belongs to user {user}")


class EngineChannel:
    """The scheduler's end of a channel.

    It reads and writes the socket itself: a transport of uvloop sends what is written only after the callback that
    wrote it, and until then the engine would wait.
    """

    def __init__(self, receive: Callable[[Answer], None], closed: Callable[[], None]) -> None:
        """`receive` gets the answers in the order of the orders. `closed` is called once, when the other end closes."""
        self._receive, self._closed = receive, closed
        self._frames = Frames()
        self._socket: socket.socket | None = None
        self._unsent = b""

    async def connect(self, door: Door) -> None:
        """Raises OSError if the engine process does not listen."""
        loop = asyncio.get_running_loop()
        self._socket = connection = door.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, door.address)
        prepare(connection)
        loop.add_reader(connection, self._read)
        self.send(door.secret)

    def send(self, data: bytes) -> None:
        """Send now, or as soon as the other end has read. After the end of the channel this does nothing."""
        if self._socket is None:
            return
        if self._unsent:
            self._unsent += data
            return
        self._unsent = self._send_some(data)
        if self._unsent:
            asyncio.get_running_loop().add_writer(self._socket, self._send_rest)

    def close(self) -> None:
        if connection := self._socket:
            self._socket, self._unsent = None, b""
            if connection.fileno() >= 0:
                loop = asyncio.get_running_loop()
                loop.remove_reader(connection)
                loop.remove_writer(connection)
            connection.close()

    def _send_some(self, data: bytes) -> bytes:
        """Returns what is left."""
        assert self._socket is not None
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:  # `_read` sees the end of the channel
            return b""

    def _send_rest(self) -> None:
        self._unsent = self._send_some(self._unsent)
        if not self._unsent and self._socket:
            asyncio.get_running_loop().remove_writer(self._socket)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._closed()
            return
        for frame in self._frames.feed(data):
            self._receive(unpack(Answer, frame))
