"""What listens where: the TCP ports of processes, as the kernel says (Linux)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.addresses import in_url
from services.exposure import is_loopback

LISTEN = "0A"  # the state in /proc/net/tcp


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """A port that the process named `process` listens on; `host` is its address."""

    host: str
    port: int
    process: str

    @property
    def is_open(self) -> bool:
        """Whether other machines reach it."""
        return not is_loopback(self.host)


def ports_of(pids: Iterable[int]) -> list[Port]:
    """All ports on which these processes listen, but those of processes that ended meanwhile."""
    sockets = _listening()
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


def told(ports: Iterable[Port]) -> str:
    """One line for people: what others reach by name, what only this machine reaches by number."""
    ports = list(ports)
    own = len({port.port for port in ports if not port.is_open})
    reached = ", ".join(f"{in_url(port.host)}:{port.port} ({port.process})" for port in ports if port.is_open)
    return f"other machines reach: {reached or 'nothing'}; this machine reaches {own} ports on the loopback address too"


def _listening() -> dict[str, tuple[str, int]]:
    """Address and port of each socket that listens, by its name in /proc/PID/fd."""
    found: dict[str, tuple[str, int]] = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTEN:
                address, _, port = fields[1].partition(":")
                found[f"socket:[{fields[9]}]"] = _address(address), int(port, 16)
    return found


def _address(text: str) -> str:
    """An address as the kernel writes it, in words of four bytes in the machine's own order."""
    words = [struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
