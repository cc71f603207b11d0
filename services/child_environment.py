"""What a child process is told by its environment: no setting of ours, as some are secrets."""

from __future__ import annotations

import os

PREFIX = "ORCA_"
# where files are, the dynamic linker's, languages and time zone
LEAST = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ")


def without_settings() -> dict[str, str]:
    """For a program that may need variables that are not known here, as pip, a compiler and Ray do."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def least(*more: str) -> dict[str, str]:
    """For a program that is told all else in its arguments or a file. `more`: names of variables that it reads."""
    return {name: os.environ[name] for name in (*LEAST, *more) if name in os.environ}
