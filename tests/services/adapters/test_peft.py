"""Folders of adapters that are refused, each with a sentence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.adapters import peft
from services.adapters.peft import CONFIG, WEIGHTS, AdapterSpec, check, read
from services.models.linears import LinearShape

BASE = "base_model.model."
LINEARS = {
    f"model.layers.{i}.{name}": LinearShape(outputs, 8)
    for i in range(2)
    for name, outputs in {"self_attn.q_proj": 12, "mlp.up_proj": 20}.items()
} | {"lm_head": LinearShape(30, 8, "makes the logits")}
Q0, Q1 = (f"model.layers.{i}.self_attn.q_proj" for i in range(2))


def write(folder: Path, ranks: dict[str, int] | None = None, **fields: Any) -> Path:
    """An adapter of the queries' products."""
    tensors: dict[str, Any] = {}
    for name in (Q0, Q1):
        rank = (ranks or {}).get(name, 2)
        tensors[f"{BASE}{name}.lora_A.weight"] = np.ones((rank, 8), np.float32)
        tensors[f"{BASE}{name}.lora_B.weight"] = np.ones((12, rank), np.float32)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
    config["base_model_name_or_path"] = "maker/base"
    (folder / CONFIG).write_text(json.dumps(config | fields))
    return folder


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_what_an_adapter_is(tmp_path: Path) -> None:
    assert check(write(tmp_path), LINEARS) == AdapterSpec(rank=2, bytes=2 * 4 * (2 * 8 + 12 * 2), base="maker/base")


def test_ranks_and_scales_are_those_of_peft(tmp_path: Path) -> None:
    """The first pattern that is the end of a name decides."""
    patterns = {"rank_pattern": {r"layers\.1\..*_proj": 4}, "alpha_pattern": {"model.layers.0.self_attn.q_proj": 9}}
    found = read(write(tmp_path, {Q1: 4}, **patterns), LINEARS)
    assert {name: part.scale for name, part in found.items()} == {Q0: 9 / 2, Q1: 4 / 4}
    found = read(write(tmp_path, {Q1: 4}, use_rslora=True, **patterns), LINEARS)
    assert {name: part.scale for name, part in found.items()} == {Q0: 9 / math.sqrt(2), Q1: 4 / math.sqrt(4)}


def test_numbers_of_sixteen_bits_are_widened(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    numbers = {name: torch.randn(each.shape) for name, each in load_torch(write(tmp_path) / WEIGHTS).items()}
    for dtype in (torch.bfloat16, torch.float16):
        save_torch({name: each.to(dtype) for name, each in numbers.items()}, tmp_path / WEIGHTS)
        found = read(tmp_path, LINEARS)[Q0]
        for side, key in ((found.a, "A"), (found.b, "B")):
            expected = numbers[f"{BASE}{Q0}.lora_{key}.weight"].to(dtype).float()
            assert np.array_equal(side, expected.numpy())


def test_a_text_part_of_another_model_has_its_names(tmp_path: Path) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.layers", "model.language_model.layers")] = tensors.pop(name)

    change(write(tmp_path), rename)
    assert read(tmp_path, LINEARS).keys() == {Q0, Q1}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type=IA3"),
        ({"peft_type": "ADALORA"}, "peft_type=ADALORA"),
        ({"use_dora": True}, "DoRA"),
        ({"use_qalora": True}, "QALoRA"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "tokens of the embedding"),
        ({"target_parameters": ["experts.down_proj"]}, "experts"),
        ({"layer_replication": [[0, 2]]}, "used twice"),
        ({"a_field_of_the_future": True}, "a_field_of_the_future"),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"init_lora_weights": "loftq"}, "path_initial_model_for_weight_conversion"),
        ({"target_modules": ["q_proj", "up_proj"]}, "lacks the tensors of model.layers.0.mlp.up_proj"),
        ({"target_modules": "all-linear"}, "lacks the tensors of model.layers.0.mlp.up_proj"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head, which makes the logits"),
        ({"target_modules": "("}, "no regular expression"),
        ({"layers_to_transform": [0], "layers_pattern": "("}, "no regular expression"),
        ({"target_modules": 5}, "target_modules=5"),
        ({"target_modules": ["q_proj", 5]}, "target_modules=['q_proj', 5]"),
        ({"exclude_modules": {"q_proj": 1}}, "exclude_modules"),
        ({"layers_to_transform": "0"}, "layers_to_transform='0'"),
        ({"layers_to_transform": [[0]]}, "layers_to_transform=[[0]]"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern=['q_proj']"),
        ({"alpha_pattern": "q_proj"}, "alpha_pattern='q_proj'"),
        ({"lora_alpha": math.nan}, "lora_alpha of model.layers.0.self_attn.q_proj is nan"),
        ({"lora_alpha": math.inf}, "is inf"),
        ({"lora_alpha": 10**400}, "which is no number"),
        ({"r": 10**400}, "which is no positive number"),
        ({"r": 300}, "rank 300 of model.layers.0.self_attn.q_proj is over the limit of 256"),
        ({"r": 3}, "has shape [2, 8], and rank and model ask for [3, 8]; the adapter is for maker/base"),
        ({"r": True}, "r of model.layers.0.self_attn.q_proj is True"),
        ({"r": 0}, "is 0"),
        ({"lora_alpha": None}, "lora_alpha of model.layers.0.self_attn.q_proj is None"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        check(write(tmp_path, **fields), LINEARS)


@pytest.mark.parametrize("fields", [{"target_modules": "SLOW"}, {"rank_pattern": {"SLOW": 2}}])
def test_a_pattern_that_takes_for_ever_is_refused(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peft, "SECONDS", 0.1)
    config = write(tmp_path, **fields) / CONFIG
    config.write_text(config.read_text().replace("SLOW", r"(.|\\w)*[A-Z]"))
    with pytest.raises(ValueError, match=re.escape("takes more than 0.1 seconds")):
        check(tmp_path, LINEARS)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "lora_dropout": 0.1,
            "fan_in_fan_out": True,
            "megatron_core": "megatron.core",
            "init_lora_weights": "gaussian",
        },
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["up_proj"]},
        {"target_modules": "model.layers.[01].self_attn.q_proj"},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": "model.*up_proj", "layers_to_transform": [0, 1]},
        {"target_modules": "all-linear", "exclude_modules": ["up_proj"]},
        {"layers_to_transform": [0, 1], "layers_pattern": "(h|layers)"},
    ],
)
def test_fields_that_change_no_output_are_taken(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert check(write(tmp_path, **fields), LINEARS).rank == 2


def test_layers_that_are_not_chosen_need_no_tensors(tmp_path: Path) -> None:
    folder = write(tmp_path, layers_to_transform=[1], layers_pattern="layers")
    change(folder, lambda tensors: [tensors.pop(f"{BASE}{Q0}.lora_{side}.weight") for side in "AB"])
    assert read(folder, LINEARS).keys() == {Q1}


A0 = f"{BASE}{Q0}.lora_A.weight"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda t: t.pop(A0), "has only lora_B of model.layers.0.self_attn.q_proj"),
        (lambda t: t.clear(), "holds no tensors"),
        (lambda t: t[A0].__setitem__((0, 0), math.nan), "NaN"),
        (lambda t: t[A0].__setitem__((0, 0), -math.inf), "infinite"),
        (lambda t: t.update({A0: np.ones((2, 9), np.float32)}), "shape [2, 9], and rank and model ask for [2, 8]"),
        (lambda t: t.update({A0: np.ones((2, 8), np.int64)}), "type I64"),
        (lambda t: t.update({A0.replace("lora_A", "lora_magnitude_vector"): t[A0]}), "DoRA"),
        (lambda t: t.update({f"{BASE}model.embed_tokens.lora_embedding_A": t[A0]}), "lora_embedding_A"),
        (lambda t: t.update({f"{BASE}lm_head.lora_A.weight": t[A0]}), "lm_head, which makes the logits"),
        (lambda t: t.update({A0.replace("layers.0", "layers.7"): t[A0]}), "no linear layer model.layers.7"),
        (lambda t: t.update({"transformer.h.0.attn.c_attn.lora_A.weight": t[A0]}), "the adapter is for maker/base"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], Any], named: str) -> None:
    change(write(tmp_path), edit)
    with pytest.raises(ValueError, match=re.escape(named)):
        check(tmp_path, LINEARS)


def test_files_that_are_refused(tmp_path: Path) -> None:
    def refused(named: str) -> None:
        with pytest.raises(ValueError, match=re.escape(named)):
            check(tmp_path, LINEARS)

    refused(f"has no {CONFIG}")
    write(tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    for torn in (b"", whole[:100], whole[:-4], b"\xff" * 64):
        (tmp_path / WEIGHTS).write_bytes(torn)
        refused("is broken")
    (tmp_path / WEIGHTS).unlink()
    refused(f"has no {WEIGHTS}")
    (tmp_path / "adapter_model.bin").write_bytes(whole)
    refused("adapter_model.bin is a pickle")
    for text in ("{", "[]", "\0"):
        (tmp_path / CONFIG).write_text(text)
        refused(CONFIG)
