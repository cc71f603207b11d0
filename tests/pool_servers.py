"""The Redis and Valkey servers of this machine, as parameters of tests and fixtures."""

from __future__ import annotations

import pytest

from services.pool.server.binaries import find_servers

SERVERS = find_servers()
ONE_OF_ALL = [  # the server that `orca serve` starts here; `make test-all` runs the others, too
    pytest.param(server, id=str(server).replace(" ", "-"), marks=[pytest.mark.full] if i else [])
    for i, server in enumerate(SERVERS)
]
