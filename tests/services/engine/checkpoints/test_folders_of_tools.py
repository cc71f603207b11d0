"""Folders as tools and people leave them: several files, modules left out, parts that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_check import STOCK, check_family
from folders import quantize_folder
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, make_tiny_model
from transformers import AutoConfig, AutoModelForImageTextToText
from written import WRITERS

from services.engine.checkpoints.tensors import open_folder
from services.engine.engine import Engine
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


def test_the_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    """Its layers have longer names, and so have their quantized weights. It runs on transformers' layers."""
    text = {**FAMILIES["gemma3_text"], "vocab_size": 201, "initializer_range": 0.2, "model_type": "gemma3_text"}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "gemma3",
        text_config=text,
        vision_config={**sizes, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path / "plain")
    quantized, numbers = quantize_folder(tmp_path / "plain", tmp_path, *WRITERS["gptq"], kept="vision_tower")
    check_family(quantized, FAST, reference=numbers)


@pytest.mark.parametrize(
    ("whole", "text", "vision"),
    [
        ("gemma4", "gemma4_text", {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}),
        ("gemma4_unified", "gemma4_unified_text", {"mm_embed_dim": 64, "patch_size": 2, "mm_posemb_size": 8}),
    ],
)
def test_the_text_part_of_gemma_4_runs_on_compiled_layers(
    whole: str, text: str, vision: dict[str, int], tmp_path: Path
) -> None:
    """As published, and with quantized weights. The reference is the text model alone."""
    fields = {**FAMILIES[text], "vocab_size": 201, "initializer_range": 0.2, "model_type": text}
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        whole, text_config=fields, vision_config=vision, audio_config=None, tie_word_embeddings=False
    )
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path / "plain")
    quantized, numbers = quantize_folder(tmp_path / "plain", tmp_path, *WRITERS["gptq"], kept="vision")
    for folder, given in ((tmp_path / "plain", tmp_path / "plain"), (quantized, numbers)):
        engine = check_family(folder, FAST, reference=_text_alone(given, config.text_config))
        assert engine.figures.numerics.endswith("native")


def _text_alone(whole: Path, config: Any) -> Path:
    """The text model of a folder in one of its own."""
    alone = whole / "text"
    config.save_pretrained(alone)
    tensors = load_file(whole / "model.safetensors")
    own = {name for name in tensors if "language_model." in name or "lm_head" in name}
    save_file(
        {name.replace("language_model.", ""): tensors[name] for name in own},
        alone / "model.safetensors",
        {"format": "pt"},
    )
    return alone


def test_a_config_within_the_one_of_the_text(tmp_path: Path) -> None:
    plain = make_tiny_model(tmp_path / "plain", with_tokenizer=False)
    quantized, numbers = quantize_folder(plain, tmp_path, *WRITERS["gptq"])
    change_config(quantized, quantization_config=None, text_config={"quantization_config": WRITERS["gptq"][0]})
    name = "model.layers.0.mlp.down_proj.weight"
    assert open_folder(quantized).read(name).float().equal(open_folder(numbers).read(name).float())
