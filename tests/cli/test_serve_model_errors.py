"""`orca serve` ends with the reason if an engine refuses the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def reason_of(model: Path, folder: Path) -> str:
    """The last line of a server that ends because of the model."""
    server = OrcaServer(folder, "--model", str(model), "--device", "cpu")
    try:
        assert server.process.wait(120) == 1
        server.until("; logs are in")
        return server.lines[-1]
    finally:
        if server.process.poll() is None:
            server.kill_all()
        server.__exit__()


def test_weights_that_contradict_the_config_end_the_start(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "llama")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    reason = reason_of(model, tmp_path)
    assert "model.embed_tokens.weight has shape" in reason
    assert "config.json asks for" in reason


def test_layers_that_only_a_run_with_weights_refuses_end_the_start(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "gptj")
    assert "gptj: its attention cannot be replaced" in reason_of(model, tmp_path)
