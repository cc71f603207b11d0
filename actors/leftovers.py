"""All processes of a cluster on this machine, whoever started them and whatever died: told by their environment."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path

from actors.environment import mark_of

LONGEST = 10.0  # seconds a killed process may take to be gone
POLL = 0.01

log = logging.getLogger(__name__)


def processes_of(folder: Path) -> dict[int, str]:
    """The living processes, but this one, of the cluster with its files in `folder`: short names by process id."""
    mark = os.fsencode(mark_of(folder))
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours to see
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


def end_processes_of(folder: Path) -> None:
    """Kill all processes of the cluster with its files in `folder`; returns when they are gone."""
    deadline = time.monotonic() + LONGEST
    while alive := processes_of(folder):
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            log.error("killed, but not gone: %s", alive)
            return
        time.sleep(POLL)
