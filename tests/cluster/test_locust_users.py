"""Each kind of Locust user against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.server import OrcaServer
from tests.load.locust_run import run_locust

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def test_all_kinds_of_users_get_whole_answers(server: OrcaServer, tmp_path: Path) -> None:
    kinds = ["ChatUser", "CompletionUser", "UnstreamedChatUser", "UnstreamedCompletionUser", "ToolUser"]
    kinds += ["ResumingChatUser", "ResumingCompletionUser"]
    run = run_locust(server.url, tmp_path, "--max-tokens", "24", *kinds, requests=14, users=7)
    assert (run.exit_code, run.aggregated, run.failures, run.exceptions) == (0, 14, [], []), run.output
