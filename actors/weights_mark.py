"""A process's mark that it has an engine's weights, for the other process of its rank: both are on one node.

The mark is a name that the kernel keeps for a process and takes back at its end, whatever ended it. So a spare knows at
once whether the process that had the weights is dead or only does not answer.
"""

from __future__ import annotations

import contextlib
import socket


class WeightsMark:
    """`name` is unique on this machine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._socket: socket.socket | None = None

    def __bool__(self) -> bool:
        """Whether it is set."""
        return self._socket is not None

    def set(self) -> None:
        """If the name is not free, the other process may load beside this one."""
        self._socket = _socket()
        with contextlib.suppress(OSError):
            self._socket.bind(_address(self._name))

    def clear(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None


def is_marked(name: str) -> bool:
    """Whether there is a process on this machine that has set this mark, be it stopped or busy."""
    with _socket() as probe:
        try:
            probe.connect(_address(name))
        except ConnectionRefusedError:
            return False
    return True


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _address(name: str) -> str:
    return f"\0orca-{name}"  # no file, so nothing is left of it
