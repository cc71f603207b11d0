"""Chat bodies as clients of other servers write them: what is read, what has no effect, what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.messages import MessageRequest
from gateway.schemas.responses import ResponseRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    asked = list(messages) or [{"role": "user", "content": "Hi"}]
    return ChatRequest.model_validate({"messages": asked, **fields})


@pytest.mark.parametrize("name", ["reasoning_details", "cache_control", "parsed", "thinking_blocks", "id", "status"])
@pytest.mark.parametrize("value", [None, 1, "x", [{"type": "x"}], {"type": "ephemeral"}])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_unknown_fields_of_a_message_have_no_effect(name: str, value: Any, role: str) -> None:
    plain = {"role": role, "content": "Hi"}
    assert chat(plain | {name: value}).messages[0].for_template() == chat(plain).messages[0].for_template()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "Hi"},
        {"type": "input_text", "text": "Hi"},
        {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []},
        {"type": "thinking", "thinking": "Hi", "signature": "s"},
        {"type": "thinking", "thinking": "Hi", "closed": True},
    ],
)
def test_parts_of_other_apis_are_text(part: dict[str, Any]) -> None:
    assert chat({"role": "assistant", "content": [part]}).messages[0].text == "Hi"


def test_texts_of_parts_follow_each_other_in_all_apis() -> None:
    """As in templates of transformers that read parts; what separates them is for the client to write."""

    def message(kind: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": kind, "text": text} for text in ("one", "", "\ntwo", " three")]}

    read = [
        chat(message("text")).messages[0].text,
        ResponseRequest.model_validate({"input": [message("input_text")]}).input[0].as_message().text,
        MessageRequest.model_validate({"messages": [message("text")], "max_tokens": 1}).turns[0].text,
    ]
    assert read == ["one\ntwo three"] * 3


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_an_empty_list_of_parts_says_that_it_is_empty(role: str) -> None:
    with pytest.raises(ValidationError, match="is an empty list; it must be a string or a list of one or more"):
        chat({"role": role, "content": []})


@pytest.mark.parametrize("role", ["ipython", "observation"])
def test_roles_of_templates_are_kept(role: str) -> None:
    assert chat({"role": role, "content": "4"}).messages[0].for_template() == {"role": role, "content": "4"}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json", "value": SCHEMA},
    ],
)
def test_a_schema_beside_json_object_is_a_json_schema(given: dict[str, Any]) -> None:
    written = {"type": "json_schema", "json_schema": {"name": "schema", "schema": SCHEMA}}
    assert chat(response_format=given).format_constraint == chat(response_format=written).format_constraint


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_object", "schema": SCHEMA, "value": SCHEMA},
        {"type": "json_object", "schema": "text"},
        {"type": "json_object", "schema": SCHEMA, "more": 1},
        {"type": "text", "schema": SCHEMA},
        {"type": "json"},
    ],
)
def test_a_format_that_says_two_things_or_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        chat(response_format=given)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "x"}]),
        ("vllm_xargs", {"a": 1}),
        ("return_tokens_as_token_ids", True),
    ],
)
def test_fields_that_are_not_served_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match="is not supported by this server") as refused:
        chat(**{field: value})
    assert refused.value.errors()[0]["loc"] == (field,)
    with pytest.raises(ValidationError, match="is not supported by this server"):
        CompletionRequest.model_validate({"prompt": "x", field: value})


def test_a_prefix_names_the_field_that_is_served() -> None:
    with pytest.raises(ValidationError, match="use 'continue_final_message'"):
        chat({"role": "assistant", "content": "The", "prefix": True})
    chat({"role": "assistant", "content": "The", "prefix": False})
