"""An engine process whose model files change while the server runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import make_tiny_model

from actors.engine import EngineActor
from services.engine.settings import EngineSettings
from services.errors import OtherWeights
from services.models.pin import pin
from services.models.replaced import Replaced


def test_it_refuses_other_weights_until_the_right_ones_are_back(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    actor = object.__new__(EngineActor)  # without Ray, which only gives it a name
    actor._settings = EngineSettings(cache_dir=tmp_path / "cache")
    actor._replaced = Replaced()
    actor._model, actor._folder = pin(str(folder), tmp_path / "cache"), folder
    actor._check_weights(folder)
    weights = folder / "model.safetensors"
    old = weights.read_bytes()
    weights.write_bytes((make_tiny_model(tmp_path / "other", seed=1) / weights.name).read_bytes())
    assert weights.stat().st_size == len(old)
    with pytest.raises(OtherWeights, match="this server was started with"):
        actor._check_weights(folder)
    weights.write_bytes(old)
    actor._check_weights(folder)
