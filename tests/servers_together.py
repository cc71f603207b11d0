"""How several processes of pytest share the tests. Apart from conftest.py, as machines without xdist run tests too."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/browser/"


class ServersTogether(LoadFileScheduling):
    """One process runs all files that start servers, one after the other, and one those that need a browser; the
    others take a file at a time."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if _starts_servers(self.config.rootpath / file):
            return "servers"
        return BROWSER if file.startswith(BROWSER) else file


@cache
def _starts_servers(file: Path) -> bool:
    return "pytest.mark.cluster" in file.read_text()
