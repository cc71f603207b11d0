"""Several models in the settings: what each has of its own, and what it shares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.arguments import parse_serve
from services.errors import UsageError
from services.settings.models import check_names, tag_of
from services.settings.settings import Settings
from services.settings.sources import load

PAIR = ({"model": "default", "engines": 2, "max_model_len": 64}, {"model": "hub/other", "served_model_name": "b"})


def test_one_model_in_the_list_is_a_server_of_one_model() -> None:
    assert Settings(models=[{"model": "hub/m", "engines": 2}]) == Settings(model="hub/m", engines=2)
    assert Settings(model="hub/m").each == (Settings(model="hub/m"),)


def test_each_model_has_its_own_settings_and_those_of_the_server() -> None:
    first, other = Settings(models=PAIR, max_batch_size=7, port=9000).each
    assert first == Settings(model="default", engines=2, max_model_len=64, max_batch_size=7, port=9000)
    assert other == Settings(
        model="hub/other", served_model_name="b", tag=tag_of("hub/other", "default"), max_batch_size=7, port=9000
    )


def test_another_process_reads_the_same_models() -> None:
    settings = Settings(models=PAIR, order="priority", api_key="k")
    again = load(**json.loads(json.dumps(settings.with_key_hashes())))
    assert again.each == settings.each
    assert again.model_dump() == settings.model_dump()


def test_the_first_model_is_that_of_the_server() -> None:
    settings = Settings(models=PAIR)
    assert (settings.model, settings.engines, settings.max_model_len) == ("default", 2, 64)


def test_pinned_names_replace_those_of_the_models() -> None:
    pinned = Settings(models=PAIR).pinned(lambda name: f"{name}@1")
    assert [(one.model, one.tokenizer) for one in pinned.each] == [("default@1", ""), ("hub/other@1", "")]
    assert pinned.each[1].served_model_name == ("b",)
    assert Settings().pinned(lambda name: f"{name}@1") == Settings(model="default@1")


def test_a_tag_is_not_given() -> None:
    """Ids and names of engines, from which it is read again, have its six digits."""
    for entries in (["a", {"model": "b", "tag": "mine"}], [{"model": "b", "tag": "mine"}]):
        with pytest.raises(ValueError, match="tag='mine' is no setting"):
            Settings(models=entries)


def test_models_on_the_command_line() -> None:
    settings = parse_serve(["hub/a", '{"model": "hub/b", "max-num-seqs": 3}', "--port", "9000"])
    assert [(one.model, one.max_batch_size, one.port) for one in settings.each] == [
        ("hub/a", "auto", 9000),
        ("hub/b", 3, 9000),
    ]
    assert parse_serve(["--models", "hub/a", "hub/b"]).each == parse_serve(["hub/a", "hub/b"]).each
    with pytest.raises(UsageError, match="name the models once"):
        parse_serve(["hub/a", "hub/b", "--model", "hub/c"])


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".yaml", "models:\n- hub/a\n- model: hub/b\n  tool-call-parser: hermes\n  max-model-len: 100\n"),
        (".toml", 'models = ["hub/a", {model = "hub/b", tool_call_parser = "hermes", max_model_len = 100}]'),
    ],
)
def test_models_in_a_file(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"orca{suffix}"
    file.write_text(text)
    first, other = load(file).each
    assert (first.model, first.max_model_len) == ("hub/a", 0)
    assert (other.model, other.max_model_len, other.tool_call_parser) == ("hub/b", 100, "hermes")
    assert load(file, model="hub/c").each == (load(model="hub/c"),)


def test_models_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_MODELS", '["hub/a", {"model": "hub/b", "engines": 3}]')
    assert [(one.model, one.engines) for one in load().each] == [("hub/a", 1), ("hub/b", 3)]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([{"engines": 2}], "an entry names no model, but engines"),
        ([{"model": "a", "engins": 2}], "models: unknown setting 'engins'; did you mean engines"),
        ([{"model": "a", "port": 1}], "an entry has settings of one model, not of the server"),
        ([{"model": "a", "api-server-count": 1}], "models: api-server-count is a setting of the server"),
        ([{"model": "a"}, {"model": "b", "engines": 0}], "b: engines: .* greater than or equal to 1"),
        ([{"model": "a"}, {"model": "b", "dtype": "float16", "device": "cpu"}], "b: .*dtype=float16"),
        (
            [{"model": "a", "served_model_name": "x"}, {"model": "b", "served_model_name": ["y", "x"]}],
            "'x' is the name",
        ),
        ({"model": "a"}, "is no list of models"),
        ([3], "the name of a model or an object with its settings, not 3"),
    ],
)
def test_wrong_models_are_refused(models: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(models=models)


def test_a_tag_is_a_function_of_the_model() -> None:
    """Whatever its place among the models and its revision are: ids of before lead to it."""
    first, other = Settings(models=PAIR).each
    assert (first.tag, other.tag) == ("", tag_of("hub/other@7", "default"))
    again, back = Settings(models=PAIR[::-1]).each
    assert (again.model, again.tag, back.tag) == ("hub/other", "", tag_of("default", "default"))
    assert all(each.has_tag(other.tag) for each in (other, again))
    assert not any(each.has_tag(other.tag) for each in (first, back))


def test_two_models_of_one_name_or_pool_are_refused() -> None:
    check_names([("a", ["x", "y"], "pool-a"), ("b", ["z"], "pool-b")])
    with pytest.raises(UsageError, match="two models have the name 'y', a and b; give one of them another served_"):
        check_names([("a", ["x", "y"], "pool-a"), ("b", ["z", "y"], "pool-b")])
    with pytest.raises(UsageError, match="a and b have the same files, and therefore the same pool"):
        check_names([("a", ["x"], "pool"), ("b", ["y"], "pool")])


def test_a_model_beside_models_is_refused() -> None:
    with pytest.raises(UsageError, match="name the models in one of them"):
        load(model="hub/c", models=["hub/a", "hub/b"])
