"""The processes of a cluster on this machine: found by their environment whatever started them, ended, and the TCP
ports on which they listen, as the kernel reports them (Linux)."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from actors.cluster.environment import mark_of
from services.settings.addresses import in_url, is_loopback

KILL_TIMEOUT = 10.0  # seconds a killed process may take to disappear
POLL = 0.01
EXEC_TIMEOUT = 1.0  # seconds
EXEC_POLL = 0.001
# `env_start` and `env_end` in /proc/PID/stat, counted from the state of the process, which follows its name
ENV = slice(47, 49)
LISTEN = "0A"  # the state in /proc/net/tcp

log = logging.getLogger(__name__)


def processes_of(folder: Path) -> dict[int, str]:
    """The living processes of the cluster with its files in `folder`, except this one: short names by process id."""
    mark = os.fsencode(mark_of(folder))
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if mark in _environment(entry).split(b"\0") and int(entry.name) != os.getpid():
                found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


def _environment(process: Path) -> bytes:
    """The environment with which `process`, a folder of /proc, was started.

    While a process is being replaced by `execve`, it has an executable file, but no place of its environment yet: wait
    for that at most `EXEC_TIMEOUT` seconds. An environment that is empty has a place that ends where it begins.
    """
    deadline = time.monotonic() + EXEC_TIMEOUT
    while not (environment := (process / "environ").read_bytes()):
        os.readlink(process / "exe")  # fails for zombies and threads of the kernel, which have no environment either
        start, end = (process / "stat").read_text().rpartition(")")[2].split()[ENV]
        if start == end != "0" or time.monotonic() > deadline:
            break
        time.sleep(EXEC_POLL)
    return environment


def end_processes_of(folder: Path) -> None:
    """Kill all other processes of the cluster with its files in `folder`, and wait until they are gone.

    Processes that are left after `KILL_TIMEOUT` seconds are logged.
    """
    deadline = time.monotonic() + KILL_TIMEOUT
    while alive := processes_of(folder):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            log.error("killed, but not gone: %s", alive)
            return
        time.sleep(POLL)


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A port on which the process named `process` listens; `host` is its address."""

    host: str
    port: int
    process: str

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)


def ports_of(pids: Iterable[int]) -> list[Port]:
    """All ports on which these processes listen. Processes that have ended are skipped."""
    sockets = _listening_sockets()
    found: set[Port] = set()
    for pid in pids:
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            name = (process / "comm").read_text().strip()
            for number in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if place := sockets.get(os.readlink(number)):
                        found.add(Port(*place, name))
    return sorted(found)


def describe(ports: Iterable[Port]) -> str:
    """One line for users: the ports that other machines reach, and how many only this machine reaches."""
    ports = list(ports)
    own = len({port.port for port in ports if not port.is_open})
    reached = ", ".join(f"{in_url(port.host)}:{port.port} ({port.process})" for port in ports if port.is_open)
    return f"other machines reach: {reached or 'nothing'}; this machine reaches {own} ports on the loopback address too"


def _listening_sockets() -> dict[str, tuple[str, int]]:
    """Address and port of each listening socket, by its name in /proc/PID/fd."""
    found: dict[str, tuple[str, int]] = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTEN:
                address, _, port = fields[1].partition(":")
                found[f"socket:[{fields[9]}]"] = _address(address), int(port, 16)
    return found


def _address(text: str) -> str:
    """Parse an address as the kernel writes it: 4-byte words in the machine's byte order."""
    words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
