"""What is wrong with a model, or asked of it, is one sentence of `orca serve` before Ray starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_model

from cli.place import Place
from cli.prepared import Prepared
from cli.serve import _compile, _ready_line
from load.random_adapter import write_adapter
from services.errors import HubUnavailable, UsageError
from services.models import hub
from services.models.linears import load_linears
from services.settings.settings import Settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", "llama")


def refused(**settings: Any) -> str:
    """The sentence. `orca` ends with status 2 for each UsageError."""
    with pytest.raises(UsageError) as raised:
        Prepared.of(Settings(**settings), print)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_nothing_is_named(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(tmp_path / "blobs" / "gone")
    assert f"{model / name} is a link to {tmp_path / 'blobs' / 'gone'}" in refused(model=str(model))


def test_a_file_that_cannot_be_read_is_named(model: Path) -> None:
    (model / "generation_config.json").unlink(missing_ok=True)
    (model / "generation_config.json").mkdir()
    assert "generation_config.json cannot be read: Is a directory" in refused(model=str(model))


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_that_is_none_is_named(model: Path, index: dict[str, Any]) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.safetensors.index.json is no index of weights" in refused(model=str(model))


def test_folders_that_cannot_be_made_are_named() -> None:
    home = Path("/proc/nobody")
    assert refused(cache_dir=home / "cache").startswith("cache_dir: ")
    with pytest.raises(UsageError, match="data_dir='/proc/nobody/data'"):
        Place.take(Settings(data_dir=home / "data"))


def test_a_parser_that_does_not_read_the_calls_of_the_model_is_refused() -> None:
    assert "tool_call_parser=llama3_json: the model's chat template does not know" in refused(
        tool_call_parser="llama3_json"
    )


def test_a_length_or_a_method_that_the_model_does_not_have_is_refused(model: Path) -> None:
    assert refused(model=str(model), max_model_len=1 << 20).startswith("max_model_len=1048576 is over")
    assert refused(model=str(model), quantization="awq").startswith("quantization=awq: ")


def test_adapters_that_the_model_cannot_have_are_refused(model: Path, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good", load_linears(model, Settings().cache_dir), 0)
    lora = {"model": str(model), "enable_lora": True}
    Prepared.of(Settings(**lora, lora_modules=[f"sql={good}"]), print)
    assert "lora_modules: sql: adapter_config.json: rank 4" in refused(
        **lora, lora_modules=[f"sql={good}"], max_lora_rank=2
    )
    missing = f"lora_modules: sql: there is no folder {tmp_path}/none"
    assert missing in refused(**lora, lora_modules=[f"sql={tmp_path}/none"])


def test_an_adapter_has_a_name_that_no_model_and_no_other_adapter_has(model: Path, tmp_path: Path) -> None:
    good = write_adapter(tmp_path / "good", load_linears(model, Settings().cache_dir), 0)

    def refused_names(first: str, second: str) -> str:
        entries = [
            {"model": str(model), "served_model_name": [name], "pool": name, "lora_modules": [f"{adapter}={good}"]}
            for name, adapter in (("one", first), ("two", second))
        ]
        with pytest.raises(UsageError) as refusal:
            Prepared.each(Settings(models=entries, enable_lora=True), print)
        return str(refusal.value)

    assert "lora_modules: 'one' is a name of the model" in refused_names("one", "law")
    assert "lora_modules: 'two' is a name of the model" in refused_names("two", "law")
    assert "lora_modules: 'sql' is a name of an adapter of" in refused_names("sql", "sql")


def test_a_hub_that_does_not_answer_is_no_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_download", lambda *_: (_ for _ in ()).throw(ConnectionError("no network")))
    with pytest.raises(HubUnavailable, match="cannot be reached: no network"):
        Prepared.of(Settings(model="nobody/nothing", cache_dir=tmp_path), print)


@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}"])
def test_a_model_without_a_template_has_no_chat(model: Path, template: str) -> None:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (model / name).unlink(missing_ok=True)
    if template:
        (model / "chat_template.jinja").write_text(template)
    found = Prepared.of(Settings(model=str(model)), print)
    assert found.has_chat == bool(template)
    assert found.model.startswith(f"{model}@")
    ready = _ready_line(Settings(model=str(model)), "", found.has_chat)
    assert ("/v1/chat/completions" in ready, '"messages"' in ready) == (found.has_chat, found.has_chat)
    assert ("/v1/completions" in ready, '"prompt"' in ready) == (not found.has_chat, not found.has_chat)


async def test_kernels_that_cannot_be_kept_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    await _compile(Settings(cache_dir=tmp_path / "file", device="cpu"), said.append)
    assert "no kernels, so transformers' own layers serve, several times slower: " in said[-1]
    assert "\n" not in said[-1]
