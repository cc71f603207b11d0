"""Locust as a process against the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.server import OrcaServer
from tests.load.locust_run import run_locust

pytestmark = pytest.mark.cluster


def test_all_streams_of_a_headless_run_are_whole(server: OrcaServer, tmp_path: Path) -> None:
    run = run_locust(server.url, tmp_path, "--max-tokens", "12", requests=8, users=4)
    assert (run.exit_code, run.exceptions, run.failures) == (0, [], {}), run.output
    assert (run.stats["e2e"].requests, run.stats["ttft"].requests) == (8, 8)
    assert 8 <= run.stats["e2e"].length <= 8 * 12  # tokens of the usage chunks
