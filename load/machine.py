"""The machine that something was measured on."""

from __future__ import annotations

import os
import platform


def machine() -> str:
    """The machine in a line, for the head of a report."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}, {cpus} cores, Python {platform.python_version()}"
