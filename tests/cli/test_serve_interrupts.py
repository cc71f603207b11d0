"""Ctrl-C while `orca serve` starts ends it at every stage, and a second one ends it whatever the first has done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from load.server import OrcaServer, free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# `orca serve` whose start ignores every cancellation
IGNORES = """
import asyncio, sys
from cli import serve

async def ignores(*_):
    print("started", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

serve._run = ignores
serve.run(sys.argv[1:])
"""


@pytest.mark.parametrize("stage", ["starting the pool's server", "starting Ray", "starting engines"])
def test_an_interrupt_at_a_stage_of_the_start(tmp_path: Path, stage: str) -> None:
    server = OrcaServer(tmp_path, "--null-engine")
    try:
        server.until(stage)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 0
        server.until("stopped")
        assert not any("ready at" in line for line in server.lines)
        assert server.cluster_folder() is None
        assert not server.pool_server()
    finally:
        if server.process.poll() is None:
            server.kill_all()
        server.__exit__()


def test_a_second_interrupt_ends_a_start_that_goes_on_after_the_first(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IGNORES, "--null-engine", "--port", str(free_port()), "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for awaited in ("started", "once more to stop at once"):
                assert any(awaited in line for line in process.stdout)
                process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
        finally:
            process.kill()
