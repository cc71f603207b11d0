"""One server for the whole session, with the default model in float32: everything real."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from orca_server import OrcaServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(tmp_path_factory.mktemp("server"), "--dtype", "float32") as server:
        yield server
