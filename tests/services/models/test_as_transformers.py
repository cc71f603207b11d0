"""Folders that say less, or more, than is needed are read as transformers reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from services.engine.families.config import load_config
from services.engine.families.registry import spec_of
from services.engine.weights.tensors import Checkpoint
from services.errors import ModelError
from services.models import ModelInfo, resolve
from services.models.replaced import Replaced, resolve_replaced
from services.models.weights_files import weights_files
from services.text import Tokenizer

pytestmark = pytest.mark.usefixtures("converts_here")

CHAT = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def edit(file: Path, *without: str, **values: Any) -> None:
    raw = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({name: value for name, value in raw.items() if name not in without} | values))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt_neox"])
def test_what_a_config_leaves_out_has_the_defaults_of_its_class(family: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", family)
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", "max_position_embeddings", "eos_token_id")
    info, config = ModelInfo.load(resolve(str(folder), tmp_path / "cache")), AutoConfig.from_pretrained(folder)
    assert info.max_model_len == config.max_position_embeddings
    assert info.eos_token_ids >= {config.eos_token_id} - {None}


def test_a_text_config_that_writes_only_what_differs(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "gemma3_text")
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {"hidden_size": 64}}))
    info, config = ModelInfo.load(resolve(str(folder), tmp_path / "cache")), AutoConfig.from_pretrained(folder)
    assert info.max_model_len == config.text_config.max_position_embeddings
    assert info.vocab_size == config.text_config.vocab_size


def test_an_index_that_was_left_over_is_not_read(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert resolve(str(model), tmp_path / "cache") == model
    assert "model.norm.weight" in Checkpoint(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"index\.json names 1 files of weights, of which 1 are absent, such as gone"):
        resolve(str(model), tmp_path / "cache")
    (model / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="it has no weight_map"):
        resolve(str(model), tmp_path / "cache")


def test_pickled_weights_beside_other_safetensors(model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    save_file({"other": torch.ones(1)}, model / "adapter.safetensors")
    with pytest.raises(ModelError, match="has no weights: none of model"):
        resolve(str(model), tmp_path / "cache")
    torch.save(weights, model / "pytorch_model.bin")
    folder = resolve(str(model), tmp_path / "cache")
    assert [file.name for file in weights_files(folder)] == ["model.safetensors"]
    assert Checkpoint(folder).read("model.norm.weight").equal(weights["model.norm.weight"])


def test_pickled_weights_that_lack_a_tensor_are_refused(model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save({name: each for name, each in weights.items() if name != "lm_head.weight"}, model / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"absent, such as lm_head\.weight"):
        resolve(str(model), tmp_path / "cache")


@pytest.mark.parametrize("where", ["added_tokens_decoder", "added_tokens.json", "named", "extra"])
def test_tokens_that_only_other_files_declare(where: str, model: Path, tmp_path: Path) -> None:
    size, file = ModelInfo.load(model).vocab_size, model / "tokenizer_config.json"
    text = "<|mark|>"
    if where == "added_tokens_decoder":
        known = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
        listed = {str(token.pop("id")): token for token in known}
        edit(file, added_tokens_decoder=listed | {str(size): {"content": text, "special": True, "normalized": False}})
    else:
        edit(file, "added_tokens_decoder")
        if where == "added_tokens.json":
            edit(model / where, **{text: size})
        elif where == "named":
            edit(file, pad_token=text)
        else:
            edit(file, additional_special_tokens=[text])
    read, right = Tokenizer.load(resolve(str(model), tmp_path / "cache")), AutoTokenizer.from_pretrained(model)
    assert read.encode(f"the {text}cat") == right.encode(f"the {text}cat")
    assert size in read.encode(f"the {text}cat")
    assert read.decode([size]) == right.decode([size], skip_special_tokens=True)


@pytest.mark.parametrize("where", ["folder", "list", "dict", "processor"])
def test_templates_wherever_they_are_written(where: str, model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    edit(model / "tokenizer_config.json", "chat_template")
    both = {"default": "plain", "tool_use": "tools:{{ tools | length }}"}
    if where == "folder":
        (model / "chat_template.jinja").write_text(both["default"])
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text(both["tool_use"])
    elif where == "processor":
        edit(model / "chat_template.json", chat_template=both)
    else:
        listed = [{"name": name, "template": template} for name, template in both.items()]
        edit(model / "tokenizer_config.json", chat_template=listed if where == "list" else both)
    read = Tokenizer.load(resolve(str(model), tmp_path / "cache"))
    assert read.apply_chat_template(CHAT) == "plain"
    assert read.apply_chat_template(CHAT, tools=TOOLS) == "tools:1"
    mine = resolve_replaced(str(model), Replaced(chat_template="mine {{ tools }}"), tmp_path / "cache")
    assert Tokenizer.load(mine).apply_chat_template(CHAT, tools=TOOLS).startswith("mine")
    ends = resolve_replaced(str(model), Replaced(generation_config="{}"), tmp_path / "cache")
    assert Tokenizer.load(ends).apply_chat_template(CHAT, tools=TOOLS) == "tools:1"


def test_the_end_token_of_the_tokenizer_ends_outputs_too(model: Path) -> None:
    edit(model / "config.json", eos_token_id=None)
    (model / "generation_config.json").unlink()
    assert ModelInfo.load(model).eos_token_ids == {2}
    edit(model / "tokenizer_config.json", eos_token="<turn>")
    edit(model / "config.json", eos_token_id=2)
    assert ModelInfo.load(model).eos_token_ids == {2, 3}


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "dynamic", "factor": 4.0}, 128),
    ],
)
def test_yarn_extends_the_longest_request(rope: dict[str, Any], length: int, model: Path) -> None:
    edit(model / "config.json", "rope_parameters", rope_scaling=rope, rope_theta=10000.0)
    assert ModelInfo.load(model).max_model_len == length


def test_a_window_that_the_class_does_not_know_is_ignored(model: Path) -> None:
    edit(model / "config.json", sliding_window=8)
    spec = spec_of(load_config(model))
    assert spec
    assert spec.windows == ()
    tokens = torch.arange(4, 40)[None]
    edited = AutoModelForCausalLM.from_pretrained(model)(tokens, use_cache=False).logits
    edit(model / "config.json", "sliding_window")
    assert AutoModelForCausalLM.from_pretrained(model)(tokens, use_cache=False).logits.equal(edited)


@pytest.mark.parametrize("kind", ["mllama", "paligemma", "florence2"])
def test_a_model_whose_text_part_is_not_served_is_named(kind: str, tmp_path: Path) -> None:
    config = {"model_type": kind, "architectures": ["OfPictures"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"{kind}") as refused:
        load_config(tmp_path)
    assert len(str(refused.value)) < 400
