"""The environment of child processes. It holds none of our settings, because some of these are secrets."""

from __future__ import annotations

import os

PREFIX = "ORCA_"
# paths, the dynamic linker, language and time zone
LEAST = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ")


def without_settings() -> dict[str, str]:
    """Return the environment for a program that may need variables unknown to us: pip, a compiler, Ray."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def least(*more: str) -> dict[str, str]:
    """Return the environment for a program that gets everything else from its arguments or a file. `more` are the names
    of further variables that it reads.
    """
    return {name: os.environ[name] for name in (*LEAST, *more) if name in os.environ}
