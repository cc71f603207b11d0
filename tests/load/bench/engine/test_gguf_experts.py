"""The GGUF file of random experts is converted and served as it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.bench.engine import gguf_experts
from load.bench.engine.families import config_of
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models.converter import main


@pytest.mark.parametrize("kind", gguf_experts.SCALES)
def test_all_products_are_as_stored(kind: str, tmp_path: Path) -> None:
    config = config_of(gguf_experts.MODEL)
    config.update({"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2})
    config.update({"vocab_size": 300, "num_experts": 4, "num_experts_per_tok": 2})
    gguf_experts.write_file(config, tmp_path / "model.gguf", kind)
    main(tmp_path / "model.gguf", tmp_path / "converted")
    engine = Engine.load(tmp_path / "converted", EngineSettings("cpu", "bfloat16", kv_blocks=10, threads=1))
    assert f"gguf {kind}: all {2 + 2 * (4 + 3 * 4)} quantized weights as stored" in engine.figures.weights
