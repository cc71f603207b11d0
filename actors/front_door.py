"""HAProxy in front of a cluster: how many connections it accepts, and how it is closed before the cluster stops.

`actors/haproxy.py` is the program that Serve starts as HAProxy.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from actors import stand_in
from actors.cluster.processes import processes_of
from actors.haproxy import FRONTEND, REFUSED
from services.engine.settings import MOST_REQUESTS
from services.errors import SettingsError
from services.settings.settings import Settings

IDLE_CONNECTIONS = 4096  # connections without a request under way, and requests that do not generate
OTHER_FILES = 1024  # open files of a process that are not connections of clients
FILES_PER_CONNECTION = 2  # of HAProxy: one to the client, one to the gateway
ADMIN = "*/*.sock"  # the sockets for commands of HAProxy and its stand-in, in the folder of a cluster
POLL = 0.05


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`served`: the connections of clients above which HAProxy refuses or closes further ones. `wanted`: the value of
    `served` with enough open files."""

    served: int
    wanted: int

    @property
    def maxconn(self) -> int:
        """Connections that HAProxy may have open, including those that it is about to refuse."""
        return self.served + REFUSED


def max_requests(settings: Settings) -> int:
    """The most requests that can be under way, one per sequence: all that may wait in each pool, and all that run. Each
    gateway accepts that many, since it may be the only one left."""
    batch = MOST_REQUESTS if settings.max_batch_size == "auto" else settings.max_batch_size
    return max(1, len(settings.shards)) * settings.max_waiting + settings.most_engines * batch


def connection_limits(settings: Settings, files: int) -> ConnectionLimits:
    """The limits for processes that may have `files` open. With enough files, a client reaches the pool's bound before
    HAProxy's; the refusal of the pool says when to try again.

    Raises SettingsError if `files` is too few for a single client.
    """
    wanted = max_requests(settings) + IDLE_CONNECTIONS
    possible = (files - OTHER_FILES) // FILES_PER_CONNECTION - REFUSED
    if possible < 1:
        least = _files_for(REFUSED + 1)
        raise SettingsError(f"the hard limit of open files is {files}, at least {least} are needed: see `ulimit -Hn`")
    return ConnectionLimits(min(wanted, possible), wanted)


def _files_for(connections: int) -> int:
    return OTHER_FILES + FILES_PER_CONNECTION * connections


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its future children as far as allowed; return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def file_limit_warning(settings: Settings, files: int) -> str:
    """A warning for the user if `files` open files are too few for all requests that may wait; empty otherwise."""
    limits = connection_limits(settings, files)
    if limits.served >= limits.wanted:
        return ""
    needed = _files_for(limits.wanted + REFUSED)
    return (
        f"open files are limited to {files}: {limits.served} connections are served at once, where "
        f"max_waiting={settings.max_waiting} asks for {limits.wanted}; `ulimit -n {needed}` allows them"
    )


def refuse_connections(folder: Path) -> None:
    """Accept no new connection, also after HAProxy's end. Those that are open continue."""
    for pid, name in processes_of(folder).items():
        if name == stand_in.TITLE:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for admin in folder.glob(ADMIN):
        stand_in.answer_of(admin, f"disable frontend {FRONTEND}")


def drain(folder: Path, timeout: float) -> None:
    """Accept no new connection; return when all requests have their answers, or after `timeout` seconds.

    Uses HAProxy's admin socket, as Serve does. Serve itself would end HAProxy at once, and every stream with it.
    """
    deadline = time.monotonic() + timeout
    refuse_connections(folder)
    while _is_busy(folder) and time.monotonic() < deadline:
        time.sleep(POLL)


def _is_busy(folder: Path) -> bool:
    """Whether a request is under way. An HAProxy that was replaced lives on until its requests have ended."""
    haproxies = [pid for pid, name in processes_of(folder).items() if name == "haproxy"]
    return len(haproxies) > 1 or any(_num_requests(admin) for admin in folder.glob(ADMIN))


def _num_requests(admin: Path) -> int:
    rows = csv.DictReader(io.StringIO(stand_in.answer_of(admin, "show stat")))
    return sum(int(row["scur"]) for row in rows if row["svname"] == "BACKEND")
