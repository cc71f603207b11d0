"""A second model, added to a running server and removed from it, with real engines and schedulers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny_models import make_tiny_model

from load.server import ROOT, OrcaServer, until

from .conftest import OPERATOR
from .test_ranks import ENGINE, another_rank

pytestmark = pytest.mark.cluster
NAME = "tiny"
LONG = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
PATIENCE = 120.0  # seconds


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


def streamed(server: OrcaServer, at_first: Callable[[], object]) -> str:
    """The text of a stream of the added model; `at_first` is called when its first event has arrived."""
    texts: list[str] = []
    url, body = server.url + "/v1/completions", {**LONG, "stream": True}
    with httpx.stream("POST", url, json=body, timeout=PATIENCE) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                if not texts:
                    at_first()
                texts.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(texts)


async def test_a_model_of_two_ranks_is_added_outlives_one_and_is_removed(server: OrcaServer, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", "qwen3")
    own = '{"served_model_name": "tiny", "max_model_len": 256, "tp": 2}'
    assert models(server, "add", str(tmp_path / "model"), "--settings", own).splitlines()[-1] == "tiny: ready"
    before, other = complete(server, **LONG), complete(server)
    assert before != other
    first = engine(server)
    assert streamed(server, lambda: os.kill(another_rank(server, first), signal.SIGKILL)) == before
    await until(lambda: first not in server.pids(ENGINE), PATIENCE)  # rank 0 was killed, too
    assert complete(server) == other
    assert models(server, "remove", NAME).splitlines()[-1] == "tiny: gone"
    assert NAME not in models(server)
    assert complete(server) == other
