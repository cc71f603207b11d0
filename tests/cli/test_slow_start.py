"""`orca serve` starts also where a process of its cluster takes long to start, as on a machine with much other work."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from waiting import wait_until

from load.processes import title_of
from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MANAGER = "ray::HAProxyManager"
SLOW = 20.0  # seconds; by default Serve gives a proxy three times 5 s to start
PATIENCE = 120.0  # seconds


def managers(server: OrcaServer) -> list[int]:
    return [pid for pid in server.cluster() if title_of(pid).startswith(MANAGER)]


@pytest.mark.chaos
def test_a_proxy_that_takes_long_is_waited_for(tmp_path: Path) -> None:
    server = OrcaServer(tmp_path, "--null-engine", "--gateways", "1")
    try:
        wait_until(lambda: managers(server), PATIENCE)
        (manager,) = managers(server)
        os.kill(manager, signal.SIGSTOP)
        time.sleep(SLOW)
        assert managers(server) == [manager]
        os.kill(manager, signal.SIGCONT)
        server.until("ready at")
        assert managers(server) == [manager]
    finally:
        server.__exit__()
