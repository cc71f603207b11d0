"""What Linux says of this machine's processors."""

from __future__ import annotations

from pathlib import Path


def cpuinfo() -> str:
    """A paragraph for each; nothing on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
