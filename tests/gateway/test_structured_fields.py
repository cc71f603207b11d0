"""The fields that constrain an answer: what they mean, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ApiError, Kind
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.generation import GenerationFields
from gateway.schemas.json_size import MOST_MEMBERS
from gateway.schemas.messages import MessageRequest
from gateway.schemas.responses import ResponseRequest
from gateway.schemas.strict import MAX_ITEMS
from gateway.schemas.structured import ConstraintKind, TagFields
from gateway.validation import digest_of

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[type[GenerationFields], dict[str, Any]] = {
    ChatRequest: {"messages": MESSAGES},
    CompletionRequest: {"prompt": "hi"},
    ResponseRequest: {"input": "hi"},
    MessageRequest: {"messages": MESSAGES, "max_tokens": 9},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "x-unknown": None}
NAMED = {"name": "answer", "schema": SCHEMA}
STRUCTURE = {"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}
TAG = {"structures": [STRUCTURE], "triggers": ["<f="]}
TAG_TEXT = '{"type": "structural_tag", "structures": [{"begin": "<", "schema": {}, "end": ""}], "triggers": ["<"]}'


def constraint(model: type[GenerationFields], **fields: Any) -> tuple[str, str, Any] | None:
    found = validate(model, BODIES[model] | fields).constraint
    return None if found is None else (found.param, found.kind.value, found.value)


@pytest.mark.parametrize("model", BODIES)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, ("structured_outputs.json", "json", SCHEMA)),
        ({"structured_outputs": {"json": '{"a": 1}'}}, ("structured_outputs.json", "json", {"a": 1})),
        ({"structured_outputs": {"regex": "a+"}}, ("structured_outputs.regex", "regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ("structured_outputs.choice", "choice", ["a", "b"])),
        ({"structured_outputs": {"grammar": "start: A"}}, ("structured_outputs.grammar", "grammar", "start: A")),
        ({"structured_outputs": {"json_object": True}}, ("structured_outputs.json_object", "json", {"type": "object"})),
        (
            {"structured_outputs": {"regex": "a", "json_object": False, "disable_any_whitespace": True}},
            ("structured_outputs.regex", "regex", "a"),
        ),
        ({"guided_json": SCHEMA, "guided_regex": None}, ("guided_json", "json", SCHEMA)),
        ({"guided_json": '{"a": 1}'}, ("guided_json", "json", {"a": 1})),
        ({"guided_regex": ""}, ("guided_regex", "regex", "")),
        ({"guided_choice": ["", "b"]}, ("guided_choice", "choice", ["", "b"])),
        ({"guided_grammar": "root ::= x"}, ("guided_grammar", "grammar", "root ::= x")),
        ({"structured_outputs": None}, None),
    ],
)
def test_fields_of_vllm(model: type[GenerationFields], fields: dict[str, Any], expected: Any) -> None:
    assert constraint(model, **fields) == expected


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_response_format(model: type[GenerationFields]) -> None:
    assert constraint(model, response_format={"type": "text"}) is None
    assert constraint(model, response_format={"type": "json_object"}) == ("response_format", "json", {"type": "object"})
    full = {"type": "json_schema", "json_schema": {**NAMED, "strict": True, "description": "an answer"}}
    assert constraint(model, response_format=full) == ("response_format", "json", SCHEMA)
    for named in ({"name": "answer", "strict": True}, {"name": "answer", "schema": None}):
        found = constraint(model, response_format={"type": "json_schema", "json_schema": named})
        assert found == ("response_format", "json", {"type": "object"})
    anything = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}
    assert constraint(model, response_format=anything) == ("response_format", "json", {})
    found = constraint(model, response_format={"type": "regex", "value": "a+"})
    assert found == ("response_format", "regex", "a+")
    found = constraint(model, response_format={"type": "structural_tag", **TAG})
    assert found is not None
    assert found[:2] == ("response_format", "structural_tag")


@pytest.mark.parametrize("tag", [TAG, TAG_TEXT, {"type": "structural_tag", **TAG}])
def test_structural_tags_are_objects_or_json(tag: Any) -> None:
    found = constraint(CompletionRequest, structured_outputs={"structural_tag": tag})
    assert found is not None
    assert found[1] == ConstraintKind.TAGS
    assert isinstance(found[2], TagFields)


TEXTS_OF_JSON: list[tuple[str, str, str]] = [  # the field, its text, what the error says of it
    ("json", '{"a": [' + "[]," * MOST_MEMBERS + "[]]}", f"at most {MOST_MEMBERS} are accepted"),
    ("json", '{"enum": [' + "1," * MAX_ITEMS + "1]}", f"at most {MAX_ITEMS} are accepted"),
    ("structural_tag", '{"structures": [' + "1," * MAX_ITEMS + "1]}", f"at most {MAX_ITEMS} are accepted"),
]


@pytest.mark.parametrize(("field", "text", "error"), TEXTS_OF_JSON)
def test_json_in_a_text_has_the_bounds_of_a_body(field: str, text: str, error: str) -> None:
    with pytest.raises(ApiError, match=error) as raised:
        constraint(CompletionRequest, structured_outputs={field: text})
    assert raised.value.param == f"structured_outputs.{field}"


def test_text_format_of_responses_is_echoed() -> None:
    def echoed(**text: Any) -> Any:
        return validate(ResponseRequest, {"input": "hi", "text": text}).echo()["text"]

    assert echoed() == echoed(format=None) == {"format": {"type": "text"}}
    assert echoed(format={"type": "json_object"}) == {"format": {"type": "json_object"}}
    full = {"type": "json_schema", **NAMED, "strict": True, "description": "an answer"}
    assert echoed(format=full) == {"format": full}
    assert constraint(ResponseRequest, text={"format": full}) == ("text.format", "json", SCHEMA)
    assert constraint(ResponseRequest, text={"format": {"type": "text"}}) is None


def test_output_config_of_messages() -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": None}
    assert constraint(MessageRequest, output_config=config) == ("output_config.format", "json", SCHEMA)
    assert constraint(MessageRequest, output_config={}) is None


FORMATS: list[tuple[dict[str, Any], str]] = [  # response_format, the name in the error
    ({}, "response_format.type"),
    ({"type": "xml"}, "response_format.type"),
    ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "regex"}, "response_format.value"),
    ({"type": "regex", "value": {"a": 1}}, "response_format.value"),
    ({"type": "text", "value": "a"}, "response_format.value"),
    ({"type": "json"}, "response_format.type"),
    ({"type": "text", "json_schema": NAMED}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
    ({"type": "json_schema", "json_schema": {**NAMED, "name": "a" * 65}}, "response_format.json_schema.name"),
    ({"type": "json_schema", "json_schema": {**NAMED, "schema": []}}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {**NAMED, "strict": "yes"}}, "response_format.json_schema.strict"),
    ({"type": "json_schema", "json_schema": {**NAMED, "extra": 1}}, "response_format.json_schema.extra"),
    ({"type": "structural_tag", "structures": [STRUCTURE]}, "response_format.triggers"),
    ({"type": "structural_tag", "triggers": ["<"]}, "response_format.structures"),
    ({"type": "structural_tag", **TAG, "triggers": ["<g"]}, "response_format.structures"),
    ({"type": "structural_tag", "format": {"type": "any_text"}}, "response_format.format"),
    ({"type": "json_object", **TAG}, "response_format.structures"),
]
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "3"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": '{"a":' * 200 + "1" + "}" * 200}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": "a" * 65_537}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"structural_tag": "[]"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " *"}}, "structured_outputs.whitespace_pattern"),
    (
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        "structured_outputs.disable_additional_properties",
    ),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_grammar": ""}, "guided_grammar"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
]


@pytest.mark.parametrize(
    ("fields", "param"), [*[({"response_format": given}, param) for given, param in FORMATS], *OTHERS]
)
def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(ChatRequest, BODIES[ChatRequest] | fields)
    assert caught.value.kind in (Kind.INVALID, Kind.UNSUPPORTED)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ({"format": {"type": "json_schema", "schema": {}}}, "text.format.name"),
        ({"format": {"type": "json_schema", "name": "a"}}, "text.format.schema"),
        ({"format": {"type": "json_object", "name": "a"}}, "text.format.name"),
        ({"format": {"type": "structural_tag"}}, "text.format.type"),
    ],
)
def test_errors_of_responses_name_the_field(text: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(ResponseRequest, {"input": "hi", "text": text})
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "first", "second"),
    [
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.regex",
            "structured_outputs.choice",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "response_format",
            "structured_outputs.regex",
        ),
        ({"guided_json": {}, "guided_grammar": "start: A"}, "guided_json", "guided_grammar"),
    ],
)
def test_two_constraints_are_refused_with_both_names(fields: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(ChatRequest, BODIES[ChatRequest] | fields)
    assert caught.value.param == second
    assert f"'{first}' and '{second}'" in caught.value.message


def test_a_format_of_text_is_no_second_constraint() -> None:
    fields = {"response_format": {"type": "text"}, "guided_regex": "a"}
    assert constraint(ChatRequest, **fields) == ("guided_regex", "regex", "a")


def test_the_digest_depends_on_the_constraint() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        {"response_format": {"type": "json_schema", "json_schema": NAMED | {"schema": {}}}},
        {"structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "b"}},
        {"structured_outputs": {"structural_tag": TAG}},
    ]
    assert len({digest_of(validate(ChatRequest, BODIES[ChatRequest] | fields)) for fields in given}) == len(given)
