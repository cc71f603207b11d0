"""Signs of a process that come from the kernel, whatever the process does: Lifeline, WeightsMark and `stopped`.

- A **lifeline** shows on every node whether the process lives. A process that must learn of another's death connects
  to its lifeline; the kernel closes the connection within milliseconds of the death. A process that is stopped or busy
  keeps it open.
- A **mark** shows on the same node whether the process has the weights of its rank. The two engine processes of a rank
  are on one node, so the spare knows at once whether the process with the weights is dead or only does not answer.
- Whether a process **is stopped**, by SIGSTOP or a debugger, shows on the same node in /proc. A process that is slow,
  that waits for a disk or that gets no processor is not stopped, so no load of the machine is taken for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import time
from collections.abc import Collection
from pathlib import Path

from services.background import start_thread

RETRY_INTERVAL = 1.0  # seconds between tries to reach a lifeline on another node
LOOK = 0.25  # seconds between looks at whether a process is stopped
LOOKS = 4  # times in a row that it must be
SILENT_NODE = 3  # seconds without an answer after which a node counts as lost


class Lifeline:
    """Accepts connections on `host`, at `address` (`<host>:<port>`), and holds them until this process ends."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._selector.register(self._listener, selectors.EVENT_READ)
        start_thread(self._hold, "lifeline")  # without the thread, this process would look dead

    @property
    def watchers(self) -> int:
        """The number of processes that watch it."""
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
            enable_keepalive(connection)
        except OSError:  # out of file descriptors, or the client has gone
            time.sleep(RETRY_INTERVAL)
            return
        self._selector.register(connection, selectors.EVENT_READ)


def _drop_if_closed(selector: selectors.BaseSelector, connection: object) -> None:
    assert isinstance(connection, socket.socket)
    try:
        received = connection.recv(1024)
    except OSError:
        received = b""
    if not received:
        selector.unregister(connection)
        connection.close()


async def watch(address: str, node: str) -> None:
    """Return when the process with the lifeline at `address` is dead. The caller is on the node `node`.

    A refused connection means death if the process is on the same node. On another node the cause may be a firewall,
    so the connection is tried again for ever: the caller has a second, slower way to learn of the death.
    """
    host, _, port = address.rpartition(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            break
        except OSError as error:
            if host == node and isinstance(error, ConnectionRefusedError):
                return
            await asyncio.sleep(RETRY_INTERVAL)
    try:
        enable_keepalive(writer.get_extra_info("socket"))
        await reader.read()
    except OSError:
        return  # the connection was reset
    finally:
        writer.close()


async def stopped(pids: Collection[int]) -> int:
    """Return when one of these processes of this machine is stopped, and has been for longer than a tool stops it
    that only looks at it.

    Looks are counted, not the time: when this process was stopped together with the other one and goes on, the other
    one has time to go on too.
    """
    looks = dict.fromkeys(pids, 0)
    while True:
        await asyncio.sleep(LOOK)
        for pid in pids:
            looks[pid] = looks[pid] + 1 if _is_stopped(pid) else 0
            if looks[pid] == LOOKS:
                return pid


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("T", "t"))
    except OSError:  # it is dead
        return False


def enable_keepalive(connection: socket.socket) -> None:
    """Let the kernel probe the other node every second. The node of a stopped process answers."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, SILENT_NODE),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class WeightsMark:
    """A mark that this process can set and clear. `name` is unique on this machine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._socket: socket.socket | None = None

    def __bool__(self) -> bool:
        """Whether the mark is set."""
        return self._socket is not None

    def set(self) -> None:
        """Set the mark. If another process has the name, the mark is not visible, and that process may load too."""
        self._socket = _mark_socket()
        with contextlib.suppress(OSError):
            self._socket.bind(_mark_address(self._name))

    def clear(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None


def is_marked(name: str) -> bool:
    """Whether a process on this machine has set this mark; the process may be stopped or busy."""
    with _mark_socket() as probe:
        try:
            probe.connect(_mark_address(name))
        except ConnectionRefusedError:
            return False
    return True


def _mark_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _mark_address(name: str) -> str:
    return f"\0orca-{name}"  # an abstract address, which leaves no file behind
