"""Fields without an effect are accepted, and the history accepts what an answer contains."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from stack import NAME, Stack

from gateway.errors import ApiError
from gateway.http import body
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest, Message
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.json_size import MOST_MEMBERS
from gateway.schemas.messages import MessageRequest
from gateway.schemas.responses import ResponseRequest
from services.settings.settings import Settings

USER = {"role": "user", "content": "hi"}
MODELS: dict[type[Any], dict[str, Any]] = {
    ChatRequest: {"messages": [USER]},
    CompletionRequest: {"prompt": "hi"},
    ResponseRequest: {"input": "hi"},
}

NOTHING: dict[str, dict[str, Any]] = {
    "an unknown field that is null": {"no_such_field": None},
    "null template arguments": {"chat_template_kwargs": None},
    "no template arguments": {"chat_template_kwargs": {}},
    "best_of of one choice": {"best_of": 1},
    "no beam search": {"use_beam_search": False},
    "a neutral length penalty": {"length_penalty": 1},
    "a neutral length penalty as a float": {"length_penalty": 1.0},
    "no early stopping": {"early_stopping": False},
    "no effort": {"reasoning": {"effort": None}},
    "the effort none": {"reasoning": {"effort": "none", "summary": None}},
    "a request's name": {"request_id": "mine"},
    "no documents": {"documents": []},
    "null guides": {"guided_json": None, "guided_regex": None, "structured_outputs": None},
    "stream options that ask for nothing": {"stream_options": {"include_usage": False}},
    "null stream options": {"stream_options": None},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NOTHING)
def test_fields_without_an_effect_are_accepted(model: type[Any], name: str) -> None:
    validate(model, MODELS[model] | NOTHING[name])


CHAT_NOTHING: dict[str, dict[str, Any]] = {
    "a choice among no tools": {"tools": [], "tool_choice": "auto"},
    "a choice among no functions": {"function_call": "auto"},
    "no likeliest tokens": {"top_logprobs": 0},
    "no log probabilities": {"logprobs": False, "top_logprobs": None},
}


@pytest.mark.parametrize("name", CHAT_NOTHING)
def test_chat_accepts_fields_without_an_effect(name: str) -> None:
    validate(ChatRequest, MODELS[ChatRequest] | CHAT_NOTHING[name])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"length_penalty": True}, "length_penalty"),
        ({"chat_template_kwargs": {"tools": True}}, "chat_template_kwargs"),
        ({"no_such_field": False}, "no_such_field"),
        ({"no_such_field": {}}, "no_such_field"),
    ],
)
def test_fields_that_could_change_tokens_are_refused(model: type[Any], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        validate(model, MODELS[model] | fields)
    assert refused.value.param == param


@pytest.mark.parametrize("name", ["stop", "no_such_field"])
def test_unknown_null_fields_of_messages_are_accepted(name: str) -> None:
    """`stop` is called `stop_sequences` in messages."""
    fields = {"messages": [USER], "max_tokens": 5, "stop_sequences": ["a"], name: None}
    assert validate(MessageRequest, fields).stop == ("a",)


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_integral_floats_are_integers(model: type[Any]) -> None:
    fields = {"max_tokens": 5.0, "n": 2.0, "seed": 3.0, "top_k": -1.0, "stop_token_ids": [1.0, 2], "min_tokens": 0.0}
    made = validate(model, MODELS[model] | fields)
    for name, value in fields.items():
        assert getattr(made, name) == value
        assert "float" not in repr(type(getattr(made, name)))
    assert made.sampling(5, 0).seed == 3


@pytest.mark.parametrize("prompt", [[1.0, 2], [[1.0, 2]]])
def test_integral_floats_are_token_ids(prompt: Any) -> None:
    (made,) = validate(CompletionRequest, {"prompt": prompt}).prompt
    assert repr(made) == "[1, 2]"


@pytest.mark.parametrize("value", [2.5, 2.0**60, 1e300, True, "2", [2]])
def test_other_values_are_not_integers(value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        validate(ChatRequest, {"messages": [USER], "n": value})
    assert refused.value.param == "n"


# --- the history ---------------------------------------------------------------------------------------------


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
DEEP = '{"a":' * 300 + "1" + "}" * 300
DEEP_CALL = {"name": "f", "arguments": DEEP}
LONG = '{"a": [' + "[]," * MOST_MEMBERS + "[]]}"
LONG_CALL = {"name": "f", "arguments": LONG}
HISTORY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "what the openai package dumps": (
        {
            "role": "assistant",
            "content": "hello",
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": None,
            "parsed": None,
            "an_extra_of_some_server": None,
        },
        {"role": "assistant", "content": "hello"},
    ),
    "what LiteLLM dumps": (
        {"role": "assistant", "content": "hello", "tool_calls": None, "provider_specific_fields": {"refusal": None}},
        {"role": "assistant", "content": "hello"},
    ),
    "no content": ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
    "content left out": ({"role": "assistant"}, {"role": "assistant", "content": ""}),
    "a refusal": (
        {"role": "assistant", "content": None, "refusal": "I will not"},
        {"role": "assistant", "content": "I will not"},
    ),
    "a refusal as a part": (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "no"},
    ),
    "reasoning": (
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
    ),
    "vLLM's reasoning": (
        {"role": "assistant", "content": "4", "reasoning": "2 and 2"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
    ),
    "a tool call": (
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
    ),
    "a call in OpenAI's older form": (
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
    ),
    "a result in OpenAI's older form": (
        {"role": "function", "name": "f", "content": "3"},
        {"role": "tool", "name": "f", "content": "3"},
    ),
    "no result in OpenAI's older form": (
        {"role": "function", "name": "f", "content": None},
        {"role": "tool", "name": "f", "content": ""},
    ),
    "arguments that are no JSON": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{a"}}],
        },
    ),
    "arguments with half of a surrogate pair": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": r'{"a": "\ud800"}'}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": r'{"a": "\ud800"}'}}],
        },
    ),
    "arguments that are nested too deep": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": DEEP_CALL}]},
    ),
    "arguments nested deeper than Python reads": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 90_000}}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "[" * 90_000}}],
        },
    ),
    "arguments with more values than a body may have": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": LONG}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": LONG_CALL}]},
    ),
    "a tool's result": (
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3"}]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ),
    "a cached part": (
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "a"},
    ),
}


@pytest.mark.parametrize("name", HISTORY)
def test_the_history_that_a_template_receives(name: str) -> None:
    message, given = HISTORY[name]
    (made,) = validate(ChatRequest, {"messages": [message]}).messages
    assert isinstance(made, Message)
    assert made.for_template() == given


def test_the_official_client_sends_its_answer_back(stack: Stack) -> None:
    """`messages=[..., message.model_dump()]` as in its documentation, and the message object itself."""
    with openai.OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "hello"}])
        message = first.choices[0].message
        for said in (message.model_dump(), message):
            asked: list[Any] = [{"role": "user", "content": "hello"}, said, {"role": "user", "content": "again"}]
            assert client.chat.completions.create(model=NAME, messages=asked).choices[0].message.content


# --- unknown_fields=ignore -----------------------------------------------------------------------------------


@pytest.fixture
def lenient(redis_url: str, tiny_folder: Path) -> Iterator[httpx.Client]:
    settings = Settings(unknown_fields="ignore")
    with Stack(redis_url, "lenient", tiny_folder, settings) as stack:
        yield stack.http


def test_unknown_fields_are_ignored_with_the_setting(
    lenient: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_warned", set())
    said = {"role": "user", "content": "hi", "mood": "good"}
    asked = {"messages": [said], "temprature": 1, "stream": True, "stream_options": {"pace": 3}}
    with caplog.at_level(logging.WARNING, "gateway.body"):
        for _ in range(2):
            assert lenient.post("/v1/chat/completions", json=asked).status_code == 200
    assert sorted(record.args for record in caplog.records) == [("pace",), ("temprature",)]  # not of keys in messages


@pytest.mark.parametrize("fields", [{"use_beam_search": True}, {"temprature": 1, "n": 0}, {"suffix": "."}])
def test_known_fields_are_not_ignored(lenient: httpx.Client, fields: dict[str, Any]) -> None:
    assert lenient.post("/v1/completions", json={"prompt": "hi"} | fields).status_code == 400


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_an_object_of_reasoning_is_for_responses(model: type[Any]) -> None:
    with pytest.raises(ApiError) as refused:
        validate(model, MODELS[model] | {"reasoning": {"effort": "high"}})
    assert refused.value.param == "reasoning"
