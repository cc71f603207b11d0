"""`orca serve` ends with the reason if an engine refuses the model, or fails again and again before it is ready."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from actors.cluster.engine_failures import MOST_FAILURES
from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def lines_of_failed_start(folder: Path, *flags: str, **constants: float) -> list[str]:
    """The lines of a server that ends before it is ready."""
    server = OrcaServer(folder, *flags, **constants)
    try:
        assert server.process.wait(120) == 1
        server.until("; logs are in")
        return server.lines
    finally:
        if server.process.poll() is None:
            server.kill_all()
        server.__exit__()


@pytest.mark.full  # tests of families have the check, the last test of this file has the end of the start
def test_weights_that_contradict_the_config_end_the_start(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "llama")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    reason = lines_of_failed_start(tmp_path, "--model", str(model), "--device", "cpu")[-1]
    assert "weight has shape" in reason
    assert "config.json asks for" in reason


def test_what_only_the_fast_path_has_is_refused_at_once(tmp_path: Path) -> None:
    """Without an engine that fails three times."""
    model = make_tiny_model(tmp_path / "model", "lfm2")
    *lines, last = lines_of_failed_start(tmp_path, "--model", str(model), "--device", "cpu", "--weights", "int8")
    assert "orca serve: weights=int8 is served on the fast path only, which this model is not on here" in last
    assert not [line for line in lines if "failed" in line]


@pytest.mark.chaos  # the tests of the engine and of the watch have its parts
def test_layers_that_only_a_run_with_weights_refuses_end_the_start(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "gptj")
    reason = lines_of_failed_start(tmp_path, "--model", str(model), "--device", "cpu")[-1]
    assert "gptj: its attention cannot be replaced" in reason


def test_an_engine_whose_warm_up_fails_again_and_again_ends_the_start(tmp_path: Path) -> None:
    """An iteration of so many seconds raises OverflowError."""
    *lines, last = lines_of_failed_start(tmp_path, "--null-engine", null_iteration=1e300)
    failures = [line.partition("] ")[2].strip() for line in lines if "engine 0 failed: OverflowError: " in line]
    assert len(set(failures)) == MOST_FAILURES
    found = re.fullmatch(
        rf"orca serve: the engine has failed 3 .*; at last, {re.escape(failures[-1])}; logs are in (.*)\n", last
    )
    assert found
    (log,) = Path(found[1]).glob(failures[-1].rpartition(" ")[2])
    assert "OverflowError" in log.read_text()
