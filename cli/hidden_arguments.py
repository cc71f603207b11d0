"""Secrets on the command line: overwritten where other users could read it, as `ps` does."""

from __future__ import annotations

import ctypes
from pathlib import Path

SECRET_FLAGS = frozenset({b"--api-key", b"--api-keys", b"--redis-url"})
ARG_START = 48 - 3  # of the fields of /proc/self/stat that follow the process's name


def hide() -> list[str]:
    """Overwrite the values of secret flags of this process; returns the flags. They were readable until here."""
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    address = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ARG_START])
    found: list[str] = []
    of_secret = False
    for argument in arguments:
        flag, equals, _ = argument.partition(b"=")
        if argument.startswith(b"-"):
            of_secret = flag in SECRET_FLAGS
            shown = len(flag) + 1 if equals else len(argument)
            if of_secret:
                found.append(flag.decode())
        else:
            shown = 0
        if of_secret and shown < len(argument):
            ctypes.memset(address + shown, ord("*"), len(argument) - shown)
        address += len(argument) + 1
    return list(dict.fromkeys(found))
