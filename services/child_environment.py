"""The environment of child processes. It holds none of our settings, because some of these are secrets.

A Python program among them imports nothing from the folder in which the user has started this one, and none of them
asks this machine through a proxy.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

PREFIX = "ORCA_"
# paths, the dynamic linker, language and time zone
LEAST = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ")
# containers often set it: each process of each start would then compile all modules again, for seconds of a processor
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
ROOT = Path(__file__).parents[1]


def without_settings() -> dict[str, str]:
    """Return the environment for a program that may need variables unknown to us: pip, a compiler, Ray."""
    own = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, NO_BYTECODE))}
    return own | _python_path() | _no_proxy()


def least(*more: str) -> dict[str, str]:
    """Return the environment for a program that gets everything else from its arguments or a file. `more` are the names
    of further variables that it reads.
    """
    return {name: os.environ[name] for name in (*LEAST, *more) if name in os.environ}


def _python_path() -> dict[str, str]:
    """Variables with which Python finds this program, and no module in the current folder: neither by `python -m` nor
    by an empty or relative part of the user's PYTHONPATH."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if str(ROOT) not in (sysconfig.get_path("purelib"), *paths):  # not installed, or only a link to this checkout
        paths.append(str(ROOT))
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}


def _no_proxy() -> dict[str, str]:
    """Variables by which libraries ask this machine directly. Most read one of the two, and ignore the other."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for part in given.split(",") if (host := part.strip())]
    value = ",".join(dict.fromkeys((*hosts, *THIS_MACHINE)))
    return {"no_proxy": value, "NO_PROXY": value}
