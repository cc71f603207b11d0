"""Each reader against the definition of its format, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from folders import set_config
from safetensors.torch import save_file
from tiny_models import make_tiny_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from writer import Writer, Written
from written import AWQ, GPTQ, WRITERS
from written_floats import fp8, nf4

from services.engine.families.config import load_config
from services.engine.weights.folder import QuantizedCheckpoint, format_of, open_folder
from services.engine.weights.quantized import GroupFormat, QuantizedWeight
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
    """The groups of a module follow from shapes and order alone. Only act-order is read as numbers."""
    one_weight(tmp_path, *WRITERS[name])
    tensors = open_folder(tmp_path, as_stored=True)
    weight = tensors.weight("a.weight")
    stored = isinstance(weight, QuantizedWeight)
    assert stored == (not name.endswith("act-order"))
    assert tensors.groups == ({"a.weight": _format(weight)} if isinstance(weight, QuantizedWeight) else {})
    assert open_folder(tmp_path).groups == {}


def _format(weight: QuantizedWeight) -> GroupFormat:
    return GroupFormat(weight.bits, weight.group, weight.values)


def test_modelopts_own_file_names_the_method(tmp_path: Path) -> None:
    """Older checkpoints have nothing in `config.json`."""
    config, write = WRITERS["modelopt, nvfp4"]
    tensors, _ = one_weight(tmp_path, config, write)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no quantization_config"):
        open_folder(tmp_path)
    own = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head*"]}
    file = tmp_path / "hf_quant_config.json"
    file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": own}))
    opened = open_folder(tmp_path)
    assert torch.equal(opened.read("a.weight"), tensors.read("a.weight"))
    file.write_text(json.dumps({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}))
    assert config_of(tmp_path) is None
    file.write_text(json.dumps({"quantization": {**own, "quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ModelError, match="quant_algo=W4A8_AWQ is not served"):
        open_folder(tmp_path)


def test_floats_of_four_bits_with_zeros_are_refused(tmp_path: Path) -> None:
    config, write = WRITERS["compressed, mxfp4"]

    def zeroed(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        written = write(rng, outputs, inputs)
        zeros = torch.zeros(outputs, inputs // 32, dtype=torch.uint8)
        return Written({**written.tensors, "weight_zero_point": zeros}, written.numbers)

    tensors, _ = one_weight(tmp_path, config, zeroed)
    with pytest.raises(ModelError, match="4 bits and zeros is not served"):
        tensors.read("a.weight")


def test_blocks_that_reach_into_the_next_row_are_numbers(tmp_path: Path) -> None:
    tensors, numbers = one_weight(tmp_path, WRITERS["bitsandbytes, nf4"][0], nf4(size=64))
    assert INPUTS % 64
    assert torch.equal(tensors.read("a.weight"), torch.from_numpy(numbers).float().bfloat16())
    opened = open_folder(tmp_path, as_stored=True)
    assert opened.quantization.refused == {"a.weight": "blocks of 64 reach into the next row"}
    assert isinstance(opened.weight("a.weight"), torch.Tensor)


def test_another_book_is_refused(tmp_path: Path) -> None:
    def other(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        written = nf4()(rng, outputs, inputs)
        return Written({**written.tensors, "weight.quant_map": torch.linspace(-1, 1, 16)}, written.numbers)

    tensors, _ = one_weight(tmp_path, WRITERS["bitsandbytes, nf4"][0], other)
    with pytest.raises(ModelError, match="another quant_map"):
        tensors.read("a.weight")


def test_scales_of_inputs_are_refused(tmp_path: Path) -> None:
    """They would have to be multiplied by a product's inputs, which NVFP4 with AWQ has them for."""

    def smoothed(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        written = WRITERS["modelopt, nvfp4"][1](rng, outputs, inputs)
        return Written({**written.tensors, "pre_quant_scale": torch.ones(inputs)}, written.numbers)

    tensors, _ = one_weight(tmp_path, WRITERS["modelopt, nvfp4"][0], smoothed)
    with pytest.raises(ModelError, match="pre_quant_scale"):
        tensors.read("a.weight")


@pytest.mark.parametrize("name", ["compressed, nvfp4", "modelopt, nvfp4"])
def test_nvfp4_without_its_factor_is_refused(name: str, tmp_path: Path) -> None:
    def without(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        written = WRITERS[name][1](rng, outputs, inputs)
        factors = ("weight_scale_2", "weight_global_scale")
        return Written({part: each for part, each in written.tensors.items() if part not in factors}, written.numbers)

    tensors, _ = one_weight(tmp_path, WRITERS[name][0], without)
    with pytest.raises(ModelError, match=r"no tensor 'a\.weight_(scale_2|global_scale)'"):
        tensors.read("a.weight")


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
    "torchao, which is not served": {"quant_method": "torchao"},
    "bitsandbytes with bnb_4bit_quant_type=fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "modelopt with quant_algo=NVFP4_AWQ is": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
    "modelopt with quant_algo=W8A16 is": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W8A16"}},
    },
    "gptq with bits=5": {**GPTQ, "bits": 5},
    "gptq with checkpoint_format=marlin": {**GPTQ, "checkpoint_format": "marlin"},
    "gptq with bits=5 for": {**GPTQ, "dynamic": {"+:.*down.*": {"bits": 5}}},
    "awq with version=gemv": {**AWQ, "version": "GEMV"},
    "awq with version=gemv_fast": {**AWQ, "version": None, "checkpoint_format": "gemv_fast"},
    "awq with backend=llm-awq": {**AWQ, "backend": "llm-awq"},
    "fp8 with fmt=e5m2": {"quant_method": "fp8", "fmt": "e5m2"},
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
