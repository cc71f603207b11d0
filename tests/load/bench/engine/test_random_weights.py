"""Folders of random FP8 or MXFP4 weights, and GGUF files of random experts, are served as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from load.bench.engine import float_folder, gguf_experts
from load.bench.engine.families import config_of
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from services.models.converter import main


@pytest.mark.parametrize(
    ("model", "method", "products"),
    [
        ("Llama 3.2 1B", "fp8, blocks of 128 x 128", 14),
        ("Qwen3 30B-A3B", "fp8, blocks of 128 x 128", 2 * (4 + 3 * 4)),
        ("GPT-OSS 20B", "mxfp4", 2 * 2),
    ],
)
def test_all_products_of_a_folder_are_as_stored(model: str, method: str, products: int, tmp_path: Path) -> None:
    config = config_of(model)
    config.update({"hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 2, "head_dim": 64})
    config.update({"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100})
    if not model.startswith("Llama"):
        config.update({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192})
    float_folder.write_folder(config, tmp_path)
    engine = Engine.load(tmp_path, EngineSettings("cpu", "bfloat16", kv_blocks=10, threads=1))
    assert f"{method}: all {products} quantized weights as stored" in engine.figures.weights


def test_blocks_have_scales_of_their_own() -> None:
    weight = torch.randn(200, 320, dtype=torch.bfloat16)
    codes, scales = float_folder.in_blocks(weight)
    assert scales.shape == (2, 3)
    each = scales.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :320]
    assert torch.allclose(codes.float() * each, weight.float(), rtol=2**-4, atol=float(scales.max()) * 2**-10)


@pytest.mark.parametrize("kind", gguf_experts.SCALES)
def test_all_products_of_a_file_are_as_stored(kind: str, tmp_path: Path) -> None:
    config = config_of(gguf_experts.MODEL)
    config.update({"hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2})
    config.update({"vocab_size": 300, "num_experts": 4, "num_experts_per_tok": 2})
    gguf_experts.write_file(config, tmp_path / "model.gguf", kind)
    main(tmp_path / "model.gguf", tmp_path / "converted")
    engine = Engine.load(tmp_path / "converted", EngineSettings("cpu", "bfloat16", kv_blocks=10, threads=1))
    assert f"gguf {kind}: all {2 + 2 * (4 + 3 * 4)} quantized weights as stored" in engine.figures.weights
