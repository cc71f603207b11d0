"""Descriptors that one process gives to others of the same user on the same machine.

A file that a path names can be opened by all who see the path, through /proc also one that has no other name. A
descriptor of a GPU's memory can only be handed over, by a thread of the process that has it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import wait

from services.background import daemon_thread

MOST = 128  # in one message; the kernel takes at most 253
PATIENCE = 10.0  # seconds until the other process has answered
PAUSE = 0.5  # seconds until a process that has no descriptor left for a connection tries again
_CREDENTIALS = struct.Struct("3i")  # of the peer: process, user, group
_COUNT = struct.Struct("<I")
_WIDTH = array("i").itemsize  # bytes of a descriptor


class DescriptorServer:
    """Gives these descriptors to each process of the same user that asks under `name`, until it is closed."""

    def __init__(self, name: str, descriptors: Sequence[int]) -> None:
        """Raises OSError if another process has the name."""
        self._descriptors = list(descriptors)
        self._listener = _socket()
        self._listener.bind(_address(name))
        self._listener.listen()
        self._closed = False
        self._serving = daemon_thread(self._serve)

    def close(self) -> None:
        """Give none from now on, and free the name. The descriptors stay open."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else the thread would wait for one more
        self._listener.close()
        wait([self._serving], PATIENCE)  # the name is free when the thread has left `accept`

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closed:
                    time.sleep(PAUSE)
                continue
            with connection, contextlib.suppress(OSError):  # the other one has gone
                connection.settimeout(PATIENCE)
                if _user(connection) == os.getuid():
                    self._give(connection)

    def _give(self, connection: socket.socket) -> None:
        connection.send(_COUNT.pack(len(self._descriptors)))
        for first in range(0, len(self._descriptors), MOST):
            socket.send_fds(connection, [b"."], self._descriptors[first : first + MOST])


def receive(name: str) -> list[int]:
    """The descriptors that a process gives under `name`. Raises OSError if it gives none, or ends meanwhile."""
    received: list[int] = []
    try:
        with _socket() as connection:
            connection.settimeout(PATIENCE)
            connection.connect(_address(name))
            if _user(connection) != os.getuid():
                raise PermissionError(f"{name} is of another user")
            head = connection.recv(_COUNT.size)
            if len(head) < _COUNT.size:
                raise ConnectionResetError(f"{name} gives nothing")
            (count,) = _COUNT.unpack(head)
            while len(received) < count:
                # socket.recv_fds ignores the flag, and a child would get the descriptors
                _, controls, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(MOST * _WIDTH), socket.MSG_CMSG_CLOEXEC)
                if not controls:
                    raise ConnectionResetError(f"{name} has ended")
                for _, _, found in controls:
                    received += array("i", found)
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise
    return received


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _address(name: str) -> str:
    return f"\0{name}"  # an abstract address, which leaves no file behind


def _user(connection: socket.socket) -> int:
    peer: tuple[int, int, int] = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return peer[1]
