"""Settings of the model: what they accept, and that all processes of a server get the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.errors import UsageError
from services.settings.settings import Settings
from services.settings.sources import load

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def passed_on(settings: Settings) -> Settings:
    """The settings as another process gets them."""
    return load(**json.loads(json.dumps(settings.with_key_hashes())))


def test_a_revision_becomes_a_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(model="some/model", revision="main")
    assert settings.model == "some/model@main"
    monkeypatch.setenv("ORCA_REVISION", "other")
    assert passed_on(settings) == settings


@pytest.mark.parametrize("model", ["default", "some/model@main", "."])
def test_a_revision_is_of_a_hub_id_that_has_none(model: str) -> None:
    with pytest.raises(UsageError, match="revision=main is for a hub id without one, not for model="):
        load(model=model, revision="main")


def test_a_template_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    settings = load(chat_template="chat.jinja")
    assert settings.chat_template == TEMPLATE
    file.write_text("{{ 'another' }}")
    assert passed_on(settings) == settings
    assert load(chat_template=TEMPLATE).chat_template == TEMPLATE
    assert load(chat_template="x" * 5000 + TEMPLATE).chat_template == "x" * 5000 + TEMPLATE


def test_what_is_no_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chat_template: is neither a file that can be read nor a template"):
        load(chat_template="missing.jinja")
    (tmp_path / "plain").write_text("hello")
    with pytest.raises(UsageError, match="chat_template: is no template"):
        load(chat_template="plain")


def test_a_generation_config_is_read_once(tmp_path: Path) -> None:
    assert load().generation_config == "auto"
    assert load(generation_config="vllm").generation_config == "vllm"
    file = tmp_path / "own" / "generation_config.json"
    file.parent.mkdir()
    file.write_text('{"temperature": 0.5,\n "eos_token_id": 2}')
    settings = load(generation_config="own")
    assert json.loads(settings.generation_config) == {"temperature": 0.5, "eos_token_id": 2}
    file.write_text("{}")
    assert passed_on(settings) == settings


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "neither auto, vllm nor a folder"),
        ("[]", r"generation_config\.json holds list"),
        ('{"temperature"  0.5}', r"generation_config\.json is not JSON: Expecting ':' delimiter: line 1 column 17"),
        ('{"temperature": 3}', r"generation_config\.json: temperature must be a number from 0 to 2, not 3"),
    ],
)
def test_a_folder_without_a_generation_config_is_refused(content: str | None, why: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(UsageError, match=f"generation_config: .*{why}"):
        load(generation_config=".")


def test_overriding_values_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_OVERRIDE_GENERATION_CONFIG", '{"top_k": 20, "temperature": 0.5}')
    settings = load()
    assert repr(settings.override_generation_config) == "{'top_k': 20, 'temperature': 0.5}"
    assert passed_on(settings) == settings


def test_a_local_tokenizer_is_found_from_any_working_folder(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    assert load(tokenizer="tok").tokenizer == str(tmp_path / "tok")
    assert load(tokenizer="some/tokenizer@main").tokenizer == "some/tokenizer@main"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"temperature": -1}, "temperature must be a number from 0 to 2, not -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, not 0"),
        ({"foo": 1}, "foo is none of temperature, top_p"),
    ],
)
def test_an_overriding_value_out_of_range_is_refused(values: dict[str, int], why: str) -> None:
    with pytest.raises(UsageError, match=f"^override_generation_config: {why}"):
        load(override_generation_config=values)


def test_a_template_that_is_not_valid_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_text("{{ 'fine' }}\n{{ } }}\n")
    with pytest.raises(
        UsageError, match=r"^chat_template: is no valid template: broken\.jinja, line 2: unexpected '}'"
    ):
        load(chat_template="broken.jinja")
    with pytest.raises(UsageError, match=r"^chat_template: is no valid template: line 1: unexpected '}'"):
        load(chat_template="{{ } }}")


@pytest.mark.parametrize(
    ("name", "why"), [("/nowhere", "/nowhere is no folder"), ("empty", "empty has no tokenizer.json")]
)
def test_a_local_tokenizer_that_is_absent_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"^tokenizer: {why}"):
        load(tokenizer=name)


def test_a_quantization_method_that_is_not_served_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^quantization: no method that is served; these are: gptq, awq, fp8, "):
        load(quantization="bogus")
