"""Folders as tools and people leave them: several files, modules left out, parts that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from family_check import STOCK, check_family
from folders import quantize_folder
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from tiny_wholes import make_whole
from transformers import AutoModelForImageTextToText
from written import WRITERS

from services.engine.engine import Engine
from services.engine.weights.folder import open_folder
from services.errors import ModelError

FAST = replace(STOCK, fast_path=True)


def divide(folder: Path, count: int = 3) -> None:
    """The tensors of a folder in several files, in turn: the parts of a module lie in different ones."""
    tensors, files = load_file(folder / "model.safetensors"), {}
    for i in range(count):
        part = {name: tensors[name] for name in sorted(tensors)[i::count]}
        save_file(part, folder / f"model-{i + 1}-of-{count}.safetensors")
        files |= dict.fromkeys(part, f"model-{i + 1}-of-{count}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "model.safetensors").unlink()


def change_config(folder: Path, **fields: object) -> None:
    raw = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({name: each for name, each in raw.items() if each is not None}))


@pytest.mark.parametrize("name", ["gptq, act-order", "compressed, 4 bits and zeros", "fp8, blocks"])
def test_parts_of_a_module_in_several_files(name: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[name])
    divide(quantized)
    check_family(quantized, FAST, reference=numbers)


@pytest.mark.parametrize(("family", "kept"), [("qwen3", "layers.0."), ("phi3", "down_proj")])
def test_layers_left_out_and_fused_modules(family: str, kept: str, tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path / "plain", family, with_tokenizer=False)
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS["awq"], kept=kept)
    check_family(quantized, FAST, reference=numbers)


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "stock"])
def test_a_quantized_vocabulary_beside_an_embedding_that_the_config_ties(
    fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """GPTQModel refuses to write it; transformers takes the two for two weights if both are in the file."""
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS["gptq"], kept="nothing")
    change_config(quantized, tie_word_embeddings=True)
    check_family(quantized, replace(STOCK, fast_path=fast_path), reference=numbers)


@pytest.mark.parametrize("status", ["frozen", None])
def test_weights_are_compressed_whatever_the_status(status: str | None, tmp_path: Path) -> None:
    """Published checkpoints of compressed weights say `frozen`, too."""
    plain = make_tiny_model(tmp_path / "plain", with_tokenizer=False)
    config, write = WRITERS["compressed, fp8"]
    quantized, numbers = quantize_folder(plain, tmp_path, {**config, "quantization_status": status}, write)
    check_family(quantized, FAST, reference=numbers)


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "stock"])
def test_weights_that_were_not_compressed_are_refused(fast_path: bool, tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path / "plain", with_tokenizer=False)
    config, write = WRITERS["compressed, fp8"]
    quantized, _ = quantize_folder(plain, tmp_path, {**config, "quantization_status": "frozen"}, write)
    tensors = load_file(quantized / "model.safetensors")
    widened = {n: each.float() if n.endswith("_proj.weight") else each for n, each in tensors.items()}
    save_file(widened, quantized / "model.safetensors")
    with pytest.raises(ModelError, match=r"weights of type torch\.float32 with scales are not served"):
        Engine.load(quantized, replace(STOCK, fast_path=fast_path))


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "stock"])
@pytest.mark.parametrize("name", ["gptq", "fp8, one scale", "fp8, blocks", "compressed, 4 bits", "compressed, int8"])
def test_quantized_weights_without_a_config_are_refused(
    name: str, fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Older tools keep it in a file of their own. FP8 would be taken for numbers."""
    quantized, _ = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[name])
    change_config(quantized, quantization_config=None)
    with pytest.raises(ModelError, match=r"quantized weights \(model.layers.*config\.json has no quantization_config"):
        Engine.load(quantized, replace(STOCK, fast_path=fast_path))


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "stock"])
@pytest.mark.parametrize("name", ["fp8, one scale", "compressed, int8"])
def test_weights_without_their_scale_are_refused(
    name: str, fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, _ = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS[name])
    tensors = load_file(quantized / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight.* without its scale"):
        Engine.load(quantized, replace(STOCK, fast_path=fast_path))


@pytest.mark.parametrize("fast_path", [True, False], ids=["fast", "stock"])
@pytest.mark.parametrize("config", [None, WRITERS["gptq"][0]], ids=["numbers", "quantized"])
@pytest.mark.parametrize("damage", ["absent", "short"])
def test_a_file_that_cannot_be_read_is_named(
    damage: str, config: dict[str, object] | None, fast_path: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """As a download leaves it that was broken off."""
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS["gptq"])
    folder = quantized if config else numbers
    divide(folder)
    file = folder / "model-2-of-3.safetensors"
    if damage == "absent":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"model-2-of-3|file not fully covered"):
        Engine.load(folder, replace(STOCK, fast_path=fast_path))


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])
def test_a_dtype_that_scales_do_not_have(spelling: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """It says nothing about quantized weights, whose numbers are the same for each."""
    quantized, numbers = quantize_folder(tiny_model("llama"), tmp_path, *WRITERS["gptq"])
    change_config(quantized, **{"dtype": None, "torch_dtype": None, spelling: "bfloat16"})
    check_family(quantized, FAST, reference=numbers)


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "mistral3"])
def test_the_text_part_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    """Its layers have longer names, and so have their quantized weights."""
    plain = make_whole(tmp_path / "plain", kind)
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS["gptq"], kept="vis")
    engine = check_family(quantized, FAST, reference=numbers, models=AutoModelForImageTextToText)
    assert engine.figures.numerics.endswith("native")


def test_a_config_within_the_one_of_the_text(tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path / "plain", with_tokenizer=False)
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS["gptq"])
    change_config(quantized, quantization_config=None, text_config={"quantization_config": WRITERS["gptq"][0]})
    name = "model.layers.0.mlp.down_proj.weight"
    assert open_folder(quantized).read(name).float().equal(open_folder(numbers).read(name).float())
