"""The trial of the fast path runs weights as they are stored, also those of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blocks_folder import keep_in_blocks
from folders import quantize_folder, set_config
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from written import WRITERS

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packing import Packer
from services.engine.settings import EngineSettings
from services.engine.startup.proof import trial as module
from services.engine.startup.proof.trial import trial
from services.engine.startup.proof.verdict import bound_of
from services.engine.weights.quantized import QuantizedWeight

SETTINGS = EngineSettings("cpu", "float32", block_size=16, kv_blocks=64, threads=2)
SIZES = {"qwen3_moe": {"moe_intermediate_size": 64}, "gpt_oss": {"intermediate_size": 64}}
GROUP = 32  # inputs that share an exponent of MXFP4


def in_blocks(plain: Path, _: Path) -> Path:
    keep_in_blocks(plain)
    return plain


def mxfp4(plain: Path, _: Path) -> Path:
    """Its numbers do not matter: those of a trial are random."""
    stored = load_file(plain / "model.safetensors")
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        stored[f"{name}_blocks"] = torch.zeros(experts, outputs, inputs // GROUP, GROUP // 2, dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.full((experts, outputs, inputs // GROUP), 127, dtype=torch.uint8)
    save_file(stored, plain / "model.safetensors", {"format": "pt"})
    set_config(plain, {"quant_method": "mxfp4"})
    return plain


def written_by(name: str, kept: str = "lm_head") -> Callable[[Path, Path], Path]:
    return lambda plain, made: quantize_folder(plain, made, *WRITERS[name], kept=kept)[0]


FOLDERS: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "gguf": ("qwen3_moe", in_blocks),
    "gptq": ("qwen3_moe", written_by("gptq")),
    "fp8": ("olmoe", written_by("fp8, by output")),
    "only the second products": ("qwen3_moe", written_by("fp8, one scale", "gate_proj")),
    "names of Mixtral": ("mixtral", written_by("compressed, 4 bits")),
    "mxfp4": ("gpt_oss", mxfp4),
}


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, quantize = FOLDERS[request.param]
    plain = make_tiny_model(tmp_path / "plain", family, with_tokenizer=False, **SIZES.get(family, {}))
    (tmp_path / "made").mkdir()
    return quantize(plain, tmp_path / "made")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[CpuDecoder]:
    """The decoders of the fast path that trials compared."""
    found: list[CpuDecoder] = []
    compare = module.compare
    monkeypatch.setattr(module, "compare", lambda fast, *given: (found.append(fast), compare(fast, *given))[1])
    return found


def broken(weight: QuantizedWeight) -> QuantizedWeight:
    """Two codes of an output have changed places."""
    codes = weight.codes.clone()
    codes[3, 4:6] = torch.tensor([0, 7], dtype=torch.uint8)
    return replace(weight, codes=codes)


def bound(settings: EngineSettings) -> float:
    return bound_of(settings, getattr(torch, settings.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_run_as_they_are_stored(dtype: str, folder: Path, tried: list[CpuDecoder]) -> None:
    settings = replace(SETTINGS, dtype=dtype)
    assert trial(folder, settings) <= bound(settings) / 2.5
    (decoder,) = tried
    for layer in decoder._packed.layers:
        assert layer.experts
        assert all(each.kind.name.startswith("GROUPS") for each in layer.experts.down)


def test_a_wrong_code_of_an_expert_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = Packer.experts

    def wrong(self, weights, spec):
        each = (
            (up, replace(down, weight=broken(down.weight)) if isinstance(down.weight, QuantizedWeight) else down)
            for up, down in weights.each
        )
        return experts(self, replace(weights, each=each), spec)

    monkeypatch.setattr(Packer, "experts", wrong)
    assert not trial(folder, SETTINGS) <= bound(SETTINGS)


def test_products_of_a_dense_model_too(tmp_path: Path, tried: list[CpuDecoder]) -> None:
    """Served in float32, with embeddings that are stored so: numbers of codes are rounded to bfloat16 all the same."""
    plain = make_tiny_model(tmp_path / "plain", "llama", with_tokenizer=False)
    (tmp_path / "made").mkdir()
    folder = written_by("gptq")(plain, tmp_path / "made")
    assert trial(folder, SETTINGS) <= bound(SETTINGS) / 2.5
    assert all(layer.qkv.kind.name.startswith("GROUPS") for layer in tried[0]._packed.layers)
