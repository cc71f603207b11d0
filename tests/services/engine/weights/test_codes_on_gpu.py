"""Quantized folders on a GPU, whose weights run as they are stored, give the bits of the same weights widened to
bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import outcome_in_any_batch
from folders import quantize_folder
from tiny_models import make_tiny_model
from written import WRITERS

from services.engine.engine import Engine
from services.engine.settings import EngineSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SETTINGS = EngineSettings(device="cuda", dtype="bfloat16", block_size=16, kv_blocks=200)
SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", 201, with_tokenizer=False, **SIZE)


@pytest.mark.parametrize(
    "name", ["gptq", "awq", "compressed, int8", "fp8, by output", "fp8, blocks", "compressed, nvfp4", "modelopt, mxfp8"]
)
def test_bits_are_those_of_the_widened_weights(name: str, plain: Path, tmp_path: Path) -> None:
    folder, _ = quantize_folder(plain, tmp_path, *WRITERS[name])
    found = []
    for weights in ("auto", "dtype"):
        engine = Engine.load(folder, replace(SETTINGS, weights=weights))
        products = [stored for name, stored in engine.decoder.as_stored.items() if "_proj" in name]
        assert set(products) == {weights == "auto"}
        found.append(outcome_in_any_batch(engine, 201, (1, 5, 40, 90)))
    assert found[0] == found[1]
