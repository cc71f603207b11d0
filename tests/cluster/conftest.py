"""One server for all of the folder that start none, with the default model in float32: everything real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from load.server import OrcaServer


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcaServer]:
    with OrcaServer(tmp_path_factory.mktemp("server"), "--dtype", "float32", "--gateways", "1") as server:
        yield server
        assert server.end() == 0
