"""Processes that a cluster on this machine left behind: HAProxy outlives the actor that started it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def end_processes_of(folder: str) -> None:
    """Kill every process whose command line names `folder`, which belongs to one cluster alone."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or not ours to see
            if folder.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
