"""Each reader against the definition of its format, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import set_config
from safetensors.torch import save_file
from tiny_models import make_tiny_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from written import AWQ, GPTQ, WRITERS, Writer, fp8

from services.engine.checkpoints.methods import format_of
from services.engine.checkpoints.tensors import QuantizedCheckpoint, open_folder
from services.engine.families.config import load_config
from services.engine.families.quantized import QuantizedWeight
from services.engine.families.values import GroupFormat
from services.errors import ModelError
from services.models.quantization import config_of

OUTPUTS, INPUTS = 72, 160


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("plain"), with_tokenizer=False)


def one_weight(folder: Path, config: dict[str, Any], write: Writer) -> tuple[QuantizedCheckpoint, np.ndarray]:
    """A folder with one quantized weight `a.weight`, and its numbers."""
    written = write(np.random.default_rng(5), OUTPUTS, INPUTS)
    tensors = {f"a.{part}": tensor for part, tensor in written.tensors.items()}
    save_file({"b.weight": torch.ones(2), **tensors}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    set_config(folder, config)
    opened = open_folder(folder)
    assert isinstance(opened, QuantizedCheckpoint)
    return opened, written.numbers


@pytest.mark.parametrize("name", WRITERS)
def test_numbers_are_those_of_the_definition(name: str, tmp_path: Path) -> None:
    tensors, numbers = one_weight(tmp_path, *WRITERS[name])
    assert tensors.names == ["a.weight", "b.weight"]
    assert "a.bias" not in tensors
    expected = torch.from_numpy(numbers.copy()).to(torch.float32).to(torch.bfloat16)
    assert torch.equal(tensors.read("a.weight"), expected)
    assert torch.equal(tensors.read("a.weight", rows=(8, 23)), expected[8:23])
    assert torch.equal(tensors.read("a.weight", columns=(32, 96)), expected[:, 32:96])
    assert tensors.rows("a.weight") == OUTPUTS


@pytest.mark.parametrize("name", WRITERS)
def test_groups_are_those_of_the_weights_that_are_read(name: str, tmp_path: Path) -> None:
    """Those of a module, from shapes and order alone. Only act-order is read as numbers."""
    one_weight(tmp_path, *WRITERS[name])
    tensors = open_folder(tmp_path, as_stored=True)
    weight = tensors.weight("a.weight")
    stored = isinstance(weight, QuantizedWeight)
    assert stored == (not name.endswith("act-order"))
    assert tensors.groups == ({"a.weight": _format(weight)} if isinstance(weight, QuantizedWeight) else {})
    assert open_folder(tmp_path).groups == {}


def _format(weight: QuantizedWeight) -> GroupFormat:
    return GroupFormat(weight.bits, weight.group, weight.values)


def test_a_bias_that_is_not_zero_is_kept(tmp_path: Path) -> None:
    one_weight(tmp_path, *WRITERS["gptq"])
    written = WRITERS["gptq"][1](np.random.default_rng(5), OUTPUTS, INPUTS)
    tensors = {f"a.{part}": tensor for part, tensor in written.tensors.items()}
    save_file({**tensors, "a.bias": torch.ones(OUTPUTS)}, tmp_path / "model.safetensors")
    assert open_folder(tmp_path).read("a.bias").sum() == OUTPUTS


def test_mxfp4_is_read_as_transformers_does(tmp_path: Path) -> None:
    """All codes, and exponents down to the least, of which products with some numbers are smaller than a float32."""
    drawn = torch.Generator().manual_seed(1)
    blocks = torch.randint(256, (3, 64, 2, 16), generator=drawn, dtype=torch.uint8)
    scales = torch.randint(0, 200, (3, 64, 2), generator=drawn, dtype=torch.uint8)
    save_file({"experts.down_proj_blocks": blocks, "experts.down_proj_scales": scales}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    set_config(tmp_path, {"quant_method": "mxfp4"})
    numbers = convert_moe_packed_tensors(blocks, scales)
    for opened in (open_folder(tmp_path), open_folder(tmp_path, as_stored=True)):
        assert isinstance(opened, QuantizedCheckpoint)
        assert opened.names == ["experts.down_proj"]
        assert opened.rows("experts.down_proj") == 3
        assert torch.equal(opened.read("experts.down_proj"), numbers)
        assert torch.equal(opened.read("experts.down_proj", (1, 2)), numbers[1:2])
        for expert in range(3):
            assert torch.equal(opened.read(f"experts.{expert}.down_proj.weight", (8, 30)), numbers[expert].t()[8:30])
            own = opened.weight(f"experts.{expert}.down_proj.weight", columns=(32, 64))
            assert isinstance(own, QuantizedWeight) == bool(opened.groups)
            dequantized = own.dequantize() if isinstance(own, QuantizedWeight) else own
            assert torch.equal(dequantized, numbers[expert].t()[:, 32:])


COMPRESSED = WRITERS["compressed, 4 bits"][0]
REFUSED: dict[str, dict[str, Any]] = {
    "bitsandbytes, which is not served": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "quantized with bitsandbytes": {"load_in_8bit": True},
    "quantized with modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "gptq with bits=3": {**GPTQ, "bits": 3},
    "gptq with checkpoint_format=marlin": {**GPTQ, "checkpoint_format": "marlin"},
    "gptq with bits=3 for": {**GPTQ, "dynamic": {"+:.*down.*": {"bits": 3}}},
    "awq with version=gemv": {**AWQ, "version": "GEMV"},
    "awq with version=gemv_fast": {**AWQ, "version": None, "checkpoint_format": "gemv_fast"},
    "awq with backend=llm-awq": {**AWQ, "backend": "llm-awq"},
    "fp8 with fmt=e5m2": {"quant_method": "fp8", "fmt": "e5m2"},
    "format=nvfp4-pack-quantized": {**COMPRESSED, "format": "nvfp4-pack-quantized"},
    "format=marlin-24": {**COMPRESSED, "format": "marlin-24"},
    "transform_config": {**COMPRESSED, "transform_config": {"config_groups": {"u": {}}}},
    "sparsity_config": {**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}},
    "int weights of 3 bits": {**COMPRESSED, "config_groups": {"0": {"weights": {"num_bits": 3, "type": "int"}}}},
    "cannot be read": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_served_is_refused_by_name(reason: str, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((plain / "config.json").read_bytes())
    set_config(tmp_path, REFUSED[reason])
    with pytest.raises(ModelError, match=reason):
        load_config(tmp_path)


def test_weights_of_inputs_by_outputs_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "gpt2", with_tokenizer=False)
    set_config(folder, GPTQ)
    with pytest.raises(ModelError, match="gpt2: quantized"):
        load_config(folder)


def test_fp8_of_another_type_is_refused(tmp_path: Path) -> None:
    def e5m2(rng: np.random.Generator, outputs: int, inputs: int) -> Any:
        written = fp8("weight_scale", lambda *_: ())(rng, outputs, inputs)
        written.tensors["weight"] = written.tensors["weight"].to(torch.float8_e5m2)
        return written

    tensors, _ = one_weight(tmp_path, {"quant_method": "fp8"}, e5m2)
    with pytest.raises(ModelError, match="float8_e5m2"):
        tensors.read("a.weight")


def test_a_folder_of_numbers_has_no_format(plain: Path) -> None:
    assert config_of(plain) is None
    assert format_of(plain) is None
