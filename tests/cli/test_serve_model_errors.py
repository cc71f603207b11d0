"""`orca serve` ends with the reason if a model's weights do not fit its config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_weights_that_contradict_the_config_end_the_start(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_tiny_model(model, "llama")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))
    server = OrcaServer(tmp_path, "--model", str(model), "--device", "cpu")
    try:
        assert server.process.wait(120) == 1
        server.until("model.embed_tokens.weight has shape")
        assert "config.json asks for" in server.lines[-1]
    finally:
        if server.process.poll() is None:
            server.kill_all()
        server.__exit__()
