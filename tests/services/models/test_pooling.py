"""How a folder says that its model makes vectors, and what an operator can say instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vector_models import write_modules

from actors.engine_build import replaced_of
from services.errors import ModelError, UsageError
from services.models.info import ModelInfo
from services.models.pooling import Pooling, read_pooling
from services.models.replaced import resolve_replaced, with_replaced
from services.settings.sources import load

SIZE = {"hidden_size": 64}


def kind(folder: Path, **config: Any) -> tuple[str, str, bool] | None:
    found = read_pooling(folder, SIZE | config)
    return found and (found.kind, found.method, found.encoder)


@pytest.mark.parametrize(
    ("architecture", "model_type", "found"),
    [
        ("LlamaForCausalLM", "llama", None),
        ("GPT2LMHeadModel", "gpt2", None),
        ("LlavaForConditionalGeneration", "llava", None),
        ("MistralModel", "mistral", ("embed", "last", False)),
        ("BertModel", "bert", ("embed", "cls", True)),
        ("XLMRobertaModel", "xlm-roberta", ("embed", "cls", True)),
        ("BertForSequenceClassification", "bert", ("classify", "cls", True)),
        ("Qwen3ForSequenceClassification", "qwen3", ("classify", "last", False)),
    ],
)
def test_an_architecture_says_it(tmp_path: Path, architecture: str, model_type: str, found: Any) -> None:
    assert kind(tmp_path, architectures=[architecture], model_type=model_type) == found


def test_the_files_of_sentence_transformers_say_it(tmp_path: Path) -> None:
    write_modules(tmp_path, "mean_tokens", normalize=False)
    found = read_pooling(tmp_path, SIZE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    assert found == Pooling("embed", "mean", 64, normalize=False)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))  # newer releases
    assert kind(tmp_path, architectures=["Qwen3ForCausalLM"]) == ("embed", "last", False)
    (tmp_path / "sentence_roberta_config.json").write_text(json.dumps({"max_seq_length": 77, "do_lower_case": True}))
    found = read_pooling(tmp_path, SIZE)
    assert found
    assert (found.max_length, found.lower_case) == (77, True)


@pytest.mark.parametrize(
    ("modules", "pooling", "why"),
    [
        ([{"path": "x", "type": "a.Transformer"}], {}, "module of type Transformer in 'x' is not served"),
        ([{"path": "1_LSTM", "type": "a.LSTM"}], {}, "module of type LSTM"),
        (None, {"pooling_mode": "max"}, "pooling by max is not served"),
        (None, {"pooling_mode": ["mean", "cls"]}, "pooling by mean, cls is not served"),
        (None, {"pooling_mode": "mean", "include_prompt": False}, "leaves out the tokens of the prompt"),
        (None, {}, "pooling by nothing"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, modules: Any, pooling: dict[str, Any], why: str) -> None:
    write_modules(tmp_path, "mean_tokens")
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if modules:
        (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=why):
        read_pooling(tmp_path, SIZE)


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        ({"runner": "pooling"}, {"runner": "pooling"}),
        ({"task": "embed"}, {"runner": "pooling"}),
        ({"task": "generate"}, {"runner": "generate"}),
        ({"convert": "embed", "runner": "auto"}, {"runner": "pooling"}),
        (
            {"runner": "pooling", "hf_overrides": '{"is_matryoshka": true}'},
            {"runner": "pooling", "is_matryoshka": True},
        ),
    ],
)
def test_flags_of_vllm_for_the_kind_of_a_model(given: dict[str, Any], overrides: dict[str, Any]) -> None:
    assert load(**given).hf_overrides == overrides


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"runner": "draft"}, "runner=draft is none of"),
        ({"hf_overrides": {"foo": 1}}, "foo is none of runner"),
        ({"hf_overrides": {"is_matryoshka": "yes"}}, "is_matryoshka must be of type bool, not 'yes'"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load(**given)


def test_an_operator_serves_a_generating_model_for_its_vectors(tmp_path: Path, tiny: Path) -> None:
    plain = ModelInfo.load(tiny)
    settings = load(runner="pooling", hf_overrides={"is_matryoshka": True})
    folder = resolve_replaced(str(tiny), replaced_of(settings), tmp_path / "cache", print)
    info = ModelInfo.load(folder)
    assert info.pooling == Pooling("embed", "last", 32, any_dimension=True)
    assert plain.pooling is None
    assert info.revision == plain.revision
    assert with_replaced(info, folder, replaced_of(settings)).revision != plain.revision
