"""The Redis and Valkey servers of this machine, as parameters of tests and fixtures."""

from __future__ import annotations

from typing import Any

import pytest

from services.pool.server.binaries import find_servers
from services.pool.server.pool_server import PoolServer

SERVERS = find_servers()
ONE_OF_ALL = [  # the server that `orca serve` starts here; `make test-all` runs the others, too
    pytest.param(server, id=str(server).replace(" ", "-"), marks=[pytest.mark.full] if i else [])
    for i, server in enumerate(SERVERS)
]


class TcpServer(PoolServer):
    """A pool's server that replicas and other programs reach on a port of this machine."""

    def __init__(self, *arguments: Any, port: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.port, self.url = port, f"redis://127.0.0.1:{port}"

    def _command(self) -> list[str]:
        return [*super()._command(), "--port", str(self.port), "--bind", "127.0.0.1"]
