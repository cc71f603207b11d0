"""The front door of a cluster, HAProxy: closed before the cluster stops, so that whoever is inside gets his answer.

Spoken to over its admin socket, as Serve does; Serve itself ends HAProxy, and every stream with it, at once.
"""

from __future__ import annotations

import contextlib
import csv
import io
import socket
import time
from pathlib import Path

from actors.haproxy import FRONTEND
from actors.leftovers import processes_of

POLL = 0.05


def drain(folder: Path, timeout: float) -> None:
    """Accept no connection any more; return when all requests have their answers, or after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    for admin in folder.glob("*/admin.sock"):
        _tell(admin, f"disable frontend {FRONTEND}")
    while _busy(folder) and time.monotonic() < deadline:
        time.sleep(POLL)


def _busy(folder: Path) -> bool:
    """Whether a request is under way. An HAProxy that was replaced lives on for the requests that it has."""
    haproxies = [pid for pid, name in processes_of(folder).items() if name == "haproxy"]
    return len(haproxies) > 1 or any(_requests(admin) for admin in folder.glob("*/admin.sock"))


def _requests(admin: Path) -> int:
    rows = csv.DictReader(io.StringIO(_tell(admin, "show stat")))
    return sum(int(row["scur"]) for row in rows if row["svname"] == "BACKEND")


def _tell(admin: Path, command: str) -> str:
    """HAProxy's answer; empty when it does not live."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2.0)
        connection.connect(str(admin))
        connection.sendall(command.encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return ""
