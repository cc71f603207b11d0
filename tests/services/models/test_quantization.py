"""The setting `quantization` against checkpoints of all kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.engine.weights.folder import METHODS
from services.errors import SettingsError
from services.models.quantization import GGUF, SERVED, check_quantization

GPTQ: dict[str, Any] = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ("", {}),
        ("", GPTQ),
        ("gptq", GPTQ),
        ("gptq_marlin", GPTQ),
        ("gptq_bitblas", GPTQ),
        ("awq_marlin", {"quantization_config": {"quant_method": "awq"}}),
        ("compressed-tensors", {"compression_config": {"quant_method": "compressed-tensors"}}),
        ("fp8", {"text_config": {"quantization_config": {"quant_method": "fp8"}}}),
        ("modelopt", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}),
        ("modelopt_fp4", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}),
    ],
)
def test_the_method_of_the_checkpoint_is_accepted(asked: str, config: dict[str, Any], tmp_path: Path) -> None:
    check_quantization(asked, str(tmp_path), write(tmp_path, config))


@pytest.mark.parametrize(
    ("asked", "config", "why"),
    [
        ("awq", GPTQ, "quantization=awq: the checkpoint .* is quantized with gptq"),
        ("awq_marlin", GPTQ, "quantization=awq_marlin: .* with gptq"),
        ("gguf", GPTQ, "quantization=gguf: .* with gptq"),
        ("awq", {"quantization_config": {"quant_method": "fp8"}}, "quantization=awq: .* with fp8"),
        ("fp8", {}, "quantization=fp8: the weights of .* are not quantized; weights=int8"),
    ],
)
def test_another_method_is_refused(asked: str, config: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=why):
        check_quantization(asked, str(tmp_path), write(tmp_path, config))


@pytest.mark.parametrize("model", ["default", "default@0123", "/models/some.Q4_K_M.gguf", "some.gguf@0123"])
def test_gguf_files(model: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {})
    check_quantization("gguf", model, folder)
    with pytest.raises(SettingsError, match="is quantized with gguf"):
        check_quantization("gptq", model, folder)


def test_the_methods_that_the_setting_accepts_are_those_that_are_served() -> None:
    assert set(SERVED) == {*METHODS, GGUF}
