"""GPT-OSS as it is published: experts in MXFP4, all else in bfloat16."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from driver import outcome_in_any_batch
from family_check import STOCK, check_family
from folders import set_config
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.settings import EngineSettings

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=100, threads=2)
GROUP = 32  # inputs that share an exponent
EXPONENTS = (122, 125)  # so that weights deviate by about 0.2
PRODUCTS = (".gate_up_proj", ".down_proj")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with random MXFP4 experts, and one with the same numbers in bfloat16."""
    plain = make_tiny_model(tmp_path_factory.mktemp("plain"), "gpt_oss", with_tokenizer=False, intermediate_size=64)
    drawn = torch.Generator().manual_seed(5)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(plain / "model.safetensors").items()}
    stored, numbers = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(PRODUCTS)]:
        experts, inputs, outputs = stored.pop(name).shape
        shape = experts, outputs, inputs // GROUP
        blocks = torch.randint(256, (*shape, GROUP // 2), generator=drawn, dtype=torch.uint8)
        scales = torch.randint(*EXPONENTS, shape, generator=drawn, dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        numbers[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
    made = tmp_path_factory.mktemp("mxfp4"), tmp_path_factory.mktemp("numbers")
    for folder, own in zip(made, (stored, numbers), strict=True):
        shutil.copy(plain / "config.json", folder)
        save_file(own, folder / "model.safetensors", {"format": "pt"})
    set_config(made[0], {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    return made


@pytest.mark.parametrize("fast_path", [True, False])
def test_tokens_are_those_of_the_same_numbers(folders: tuple[Path, Path], fast_path: bool) -> None:
    quantized, numbers = folders
    engine = check_family(quantized, replace(STOCK, fast_path=fast_path), reference=numbers)
    assert engine.figures.numerics.endswith("native") == fast_path


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, dtype="bfloat16")], ids=["float32", "bfloat16"])
def test_bits_are_those_of_the_widened_experts(folders: tuple[Path, Path], settings: EngineSettings) -> None:
    found = []
    variants: list[tuple[EngineSettings, str]] = [
        (replace(settings, weights="auto"), "as stored"),
        (replace(settings, weights="dtype"), "kept as bfloat16 (--weights dtype)"),
    ]
    for variant, said in variants:
        engine = Engine.load(folders[0], variant)
        assert f"all 4 quantized weights {said}, " in engine.figures.weights
        assert isinstance(engine.decoder, CpuDecoder)
        for layer in engine.decoder._packed.layers:
            assert layer.experts
            kinds = {each.kind.name for each in (*layer.experts.up, *layer.experts.down)}
            assert all(kind.startswith("GROUPS") == (variant.weights == "auto") for kind in kinds)
        found.append((outcome_in_any_batch(engine, 201, (1, 5, 90)), engine.figures.numerics))
    assert found[0] == found[1]
