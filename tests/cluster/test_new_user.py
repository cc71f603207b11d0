"""The first steps of a new user."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from load.server import ROOT, OrcaServer
from tests.load.locust_run import run_locust

pytestmark = pytest.mark.cluster


def test_the_printed_curl_command_is_answered(server: OrcaServer) -> None:
    line = next(line for line in server.lines if "ready at" in line)
    done = subprocess.run(shlex.split(line.partition("try: ")[2]), capture_output=True, check=True)
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_orca_chat_streams_an_answer(server: OrcaServer) -> None:
    command = [sys.executable, "-m", "cli", "chat", "--url", server.url, "--temperature", "0"]
    done = subprocess.run(
        [*command, "What is the capital of France?"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "Paris" in done.stdout


def test_orca_status_shows_what_runs(server: OrcaServer) -> None:
    command = [sys.executable, "-m", "cli", "status", "--url", server.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ready" in done.stdout
    assert "engines" in done.stdout


def test_the_message_without_a_server() -> None:
    command = [sys.executable, "-m", "cli", "chat", "--url", "http://127.0.0.1:9", "hello"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "orca serve" in done.stderr


def test_all_kinds_of_locust_users_get_whole_answers(server: OrcaServer, tmp_path: Path) -> None:
    kinds = ["ChatUser", "CompletionUser", "UnstreamedChatUser", "UnstreamedCompletionUser", "ToolUser"]
    kinds += ["ResumingChatUser", "ResumingCompletionUser"]
    run = run_locust(server.url, tmp_path, "--max-tokens", "24", *kinds, requests=14, users=7)
    assert (run.exit_code, run.aggregated, run.failures, run.exceptions) == (0, 14, [], []), run.output
