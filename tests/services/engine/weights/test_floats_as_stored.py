"""FP8, MXFP8, NVFP4, MXFP4 and NF4 weights that run as they are stored give the bits of the same weights widened to
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

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packed import Coding
from services.engine.engine import Engine
from services.engine.settings import EngineSettings

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    return make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", 201, with_tokenizer=False, **size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "coding"),
    [
        ("fp8, blocks", Coding.E4M3),
        ("fp8, by output", Coding.E4M3),
        ("fp8, one scale", Coding.E4M3),
        ("compressed, fp8 blocks", Coding.E4M3),
        ("compressed, nvfp4", Coding.BOOK),
        ("compressed, mxfp4", Coding.BOOK),
        ("modelopt, fp8 blocks", Coding.E4M3),
        ("modelopt, mxfp8", Coding.E4M3),
        ("bitsandbytes, nf4", Coding.BOOK),
        ("modelopt, nvfp4", Coding.BOOK),
    ],
)
def test_bits_are_those_of_the_widened_weights(
    name: str, coding: Coding, dtype: str, plain: Path, tmp_path: Path
) -> None:
    folder, _ = quantize_folder(plain, tmp_path, *WRITERS[name])
    found = []
    for weights in ("auto", "dtype"):
        engine = Engine.load(folder, replace(SETTINGS, dtype=dtype, weights=weights))
        assert isinstance(engine.decoder, CpuDecoder)
        for layer in engine.decoder._packed.layers:
            for matrix in (layer.qkv, layer.output, layer.up, layer.down):
                assert matrix
                assert (matrix.groups.coding if matrix.groups else None) == (coding if weights == "auto" else None)
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 40, 90)), engine.figures.numerics))
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "name", ["gptq", "awq", "compressed, int8", "fp8, by output", "fp8, blocks", "compressed, nvfp4", "modelopt, mxfp8"]
)
def test_bits_on_a_gpu_are_those_of_the_widened_weights(name: str, plain: Path, tmp_path: Path) -> None:
    folder, _ = quantize_folder(plain, tmp_path, *WRITERS[name])
    settings = EngineSettings(device="cuda", dtype="bfloat16", block_size=16, kv_blocks=200)
    found = []
    for weights in ("auto", "dtype"):
        engine = Engine.load(folder, replace(settings, weights=weights))
        products = [stored for name, stored in engine.decoder.as_stored.items() if "_proj" in name]
        assert set(products) == {weights == "auto"}
        found.append(outcome_in_any_batch(engine, 201, (1, 5, 40, 90)))
    assert found[0] == found[1]
