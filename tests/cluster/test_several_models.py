"""A second model, added to a running server and removed from it, with real engines and schedulers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import make_tiny_model

from load.server import ROOT, OrcaServer

from .conftest import OPERATOR

pytestmark = pytest.mark.cluster
NAME = "tiny"


def models(server: OrcaServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "cli", "models", *arguments, "--url", server.url, "--api-key", OPERATOR]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def complete(server: OrcaServer, **fields: Any) -> Any:
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0} | fields
    response = httpx.post(server.url + "/v1/completions", json=body, timeout=120)
    return response.raise_for_status().json()["choices"][0]["text"]


def engine(server: OrcaServer) -> int:
    """The process of the added model's engine."""
    families = text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == "orca:engine_pid"]
    (pid,) = [int(sample.value) for sample in samples if sample.labels["model_name"] == NAME]
    return pid


def test_a_model_is_added_answers_after_its_engine_died_and_is_removed(server: OrcaServer, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", "qwen3")
    own = '{"served_model_name": "tiny", "max_model_len": 64}'
    assert models(server, "add", str(tmp_path / "model"), "--settings", own).splitlines()[-1] == "tiny: ready"
    before, first = complete(server, model=NAME), complete(server)
    assert before != first
    os.kill(engine(server), signal.SIGKILL)
    assert (complete(server, model=NAME), complete(server)) == (before, first)
    assert models(server, "remove", NAME).splitlines()[-1] == "tiny: gone"
    assert NAME not in models(server)
    assert complete(server) == first
