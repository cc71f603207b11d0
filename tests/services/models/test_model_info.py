"""ModelInfo from the config files of different families."""

import json
from pathlib import Path

import pytest

from services.errors import ModelError
from services.models import ModelInfo

BASE = {"architectures": ["XForCausalLM"], "vocab_size": 10, "max_position_embeddings": 64}


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        ({"eos_token_id": 2}, None, {2}),
        ({"eos_token_id": [2, 3]}, {}, {2, 3}),
        ({"eos_token_id": 2}, {"eos_token_id": [4, 5]}, {4, 5}),
        ({}, {"eos_token_id": 0}, {0}),
        ({"eos_token_id": None}, {"eos_token_id": None}, set()),
    ],
)
def test_end_tokens(config: dict, generation: dict | None, ids: set[int], tmp_path: Path) -> None:
    assert ModelInfo.load(write(tmp_path, BASE | config, generation)).eos_token_ids == ids


@pytest.mark.parametrize("wrong", ["2", "</s>", [[2]], {"id": 2}, 2.5, True, [2, None]])
def test_end_tokens_of_another_type_are_refused(wrong: object, tmp_path: Path) -> None:
    """An output would not end at such a token."""
    with pytest.raises(ModelError, match="eos_token_id must be a token id"):
        ModelInfo.load(write(tmp_path, BASE, {"eos_token_id": wrong}))


def test_json_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    write(tmp_path, BASE)
    (tmp_path / "generation_config.json").write_text('{"a":' + "[" * 100_000)
    with pytest.raises(ModelError, match="is not JSON"):
        ModelInfo.load(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 10, "n_positions": 64, "model_type": "gpt2"},
        {"architectures": ["M"], "text_config": {"vocab_size": 10, "max_position_embeddings": 64}},
    ],
)
def test_other_names_of_fields(config: dict, tmp_path: Path) -> None:
    info = ModelInfo.load(write(tmp_path, config))
    assert (info.vocab_size, info.max_model_len) == (10, 64)
    assert info.architecture in ("gpt2", "M")


def test_the_revision_depends_on_config_and_weights(tmp_path: Path) -> None:
    revisions = []
    write(tmp_path, BASE)
    revisions.append(ModelInfo.load(tmp_path).revision)
    (tmp_path / "model.safetensors").write_bytes(b"1")
    revisions.append(ModelInfo.load(tmp_path).revision)
    (tmp_path / "model.safetensors").write_bytes(b"12")
    revisions.append(ModelInfo.load(tmp_path).revision)
    (tmp_path / "model.safetensors").write_bytes(b"13")  # a fine-tune has the same names, shapes and sizes
    revisions.append(ModelInfo.load(tmp_path).revision)
    write(tmp_path, BASE | {"rope_theta": 1.0})
    revisions.append(ModelInfo.load(tmp_path).revision)
    assert len(set(revisions)) == 5


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"vocab_size": 10, "architectures": ["X"]}, "max_position_embeddings"),
        ({"max_position_embeddings": 1, "architectures": ["X"]}, "vocab_size"),
        ([], "not an object"),
    ],
)
def test_missing_fields_are_named(config: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=why):
        ModelInfo.load(write(tmp_path, config))


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        ModelInfo.load(tmp_path)


def test_the_type_of_a_model_without_a_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"of type 'mamba', says none of: max_position_embeddings.*docs/models\.md"):
        ModelInfo.load(write(tmp_path, {"model_type": "mamba", "architectures": ["M"], "vocab_size": 10}))
