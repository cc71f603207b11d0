"""Ctrl-C while `orca serve` starts ends it at every stage, and a second one ends it whatever the first has done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import make_tiny_model
from waiting import wait_until

from load.gguf_files import write_gguf
from load.server import OrcaServer, free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PATIENCE = 120.0  # seconds

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


def titles(server: OrcaServer) -> dict[int, str]:
    """The command lines of the processes below it, by their ids."""
    found = {}
    for pid in server.descendants():
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text()
    return found


@pytest.mark.parametrize("waits_for", ["g++", "services.models.converter"])
def test_what_a_start_waits_for_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str) -> None:
    """A compiler with its own children, or a conversion."""
    flags = []
    if waits_for == "g++":
        compiler = tmp_path / "g++"
        compiler.write_text("#!/bin/sh\ntest $1 = --version && echo slow || sleep 1000 | sleep 1000\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    else:
        file = write_gguf(make_tiny_model(tmp_path / "model"), tmp_path / "model.gguf")
        flags = [str(file), "--cache-dir", str(tmp_path / "cache")]
    server = OrcaServer(tmp_path, *flags)
    try:
        wait_until(lambda: any(waits_for in title for title in titles(server).values()), PATIENCE)
        left = titles(server)
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        # whoever inherits a killed process takes a moment to bury it
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
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
