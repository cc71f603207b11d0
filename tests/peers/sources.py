"""The files of a suite, fetched when it runs. Nothing of them is kept in the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.clients.environments import INSTALL_TIMEOUT, NotInstalled
from tests.peers.catalogue import Source

VARIABLE = "ORCA_PEERS_GIT"  # a folder or an address below which repositories lie as OWNER/NAME
HOST = "https://github.com"


def checkout(source: Source, folder: Path) -> Path:
    """The folders of the source at its tag or commit, in a work tree below `folder`; fetched once.

    Only the commit and the files of these folders are fetched, where the server can filter.

    Raises:
        NotInstalled: with git's last line.
    """
    place = folder.absolute() / f"{source.repository.replace('/', '+')}-{source.ref[:12]}"
    if not (place / ".git" / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        _git(place, "init", "--quiet")
        _git(place, "remote", "add", "origin", f"{os.environ.get(VARIABLE, HOST)}/{source.repository}")
        _git(place, "sparse-checkout", "set", *source.folders)
        _git(place, "fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", source.ref)
        _git(place, "checkout", "--quiet", "FETCH_HEAD")
        (place / ".git" / "complete").touch()
    return place


def _git(place: Path, *words: str) -> None:
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *words], env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"git {words[0]}: {error}") from error
    if done.returncode:
        raise NotInstalled(f"git {words[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
