"""The tools of the three APIs become one form, and messages with calls and results become those of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ApiError, Kind
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.messages import CountTokensRequest, MessageRequest
from gateway.schemas.responses import ResponseRequest
from gateway.tools import NO_TOOLS, Tool, ToolChoice, ToolUse
from gateway.validation import digest_of

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather of a city.", "strict": True}
TIME = {"name": "time"}
TOOLS = [Tool("weather", "The weather of a city.", SCHEMA, strict=True), Tool("time")]
SAY = [{"role": "user", "content": "hi"}]


def chat(tool_choice: Any = None, **fields: Any) -> ChatRequest:
    functions = [WEATHER | {"parameters": SCHEMA}, TIME]
    tools = [{"type": "function", "function": function} for function in functions]
    return validate(ChatRequest, {"messages": SAY, "tools": tools, "tool_choice": tool_choice} | fields)


def response(tool_choice: Any = None, **fields: Any) -> ResponseRequest:
    tools = [{"type": "function", **WEATHER, "parameters": SCHEMA}, {"type": "function", **TIME}]
    return validate(ResponseRequest, {"input": "hi", "tools": tools, "tool_choice": tool_choice} | fields)


def message(tool_choice: Any = None, **fields: Any) -> MessageRequest:
    tools = [WEATHER | {"input_schema": SCHEMA}, TIME | {"type": "custom", "input_schema": {"type": "object"}}]
    body = {"messages": SAY, "max_tokens": 5, "tools": tools, "tool_choice": tool_choice}
    return validate(MessageRequest, body | fields)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


CHOICES: dict[str, tuple[Any, Any, Any, ToolChoice]] = {  # of chat, Responses and messages
    "the default": (None, None, None, ToolChoice()),
    "auto": ("auto", "auto", {"type": "auto"}, ToolChoice("auto")),
    "none": ("none", "none", {"type": "none"}, ToolChoice("none")),
    "required": ("required", "required", {"type": "any"}, ToolChoice("required")),
    "a name": (
        named("time"),
        {"type": "function", "name": "time"},
        {"type": "tool", "name": "time"},
        ToolChoice("required", ("time",), named=True),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_all_apis_give_one_form(name: str) -> None:
    *given, choice = CHOICES[name]
    assert chat(given[0]).tool_use == response(given[1]).tool_use == ToolUse(TOOLS, choice)
    assert message(given[2]).tool_use == ToolUse([TOOLS[0], Tool("time", None, {"type": "object"})], choice)


def test_allowed_tools() -> None:
    for mode in ("auto", "required"):
        of_chat = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("time")]}}
        of_response = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "time"}]}
        for use in (chat(of_chat).tool_use, response(of_response).tool_use):
            assert [tool.name for tool in use.callable] == ["time"]
            assert (use.required, use.constrains, len(use.tools)) == (mode == "required", mode == "auto", 2)


def test_how_tools_may_be_called() -> None:
    assert chat().tool_use.calls
    assert chat().tool_use.constrains  # one tool is strict
    assert not chat("none").tool_use.calls
    assert not chat("none").tool_use.constrains
    assert chat("required").tool_use.required
    assert chat().tool_use.max_calls == response().tool_use.max_calls == message().tool_use.max_calls > 1
    assert chat(named("time")).tool_use.max_calls == 1
    assert chat(parallel_tool_calls=False).tool_use.max_calls == 1
    assert response(parallel_tool_calls=False).tool_use.max_calls == 1
    assert message({"type": "any", "disable_parallel_tool_use": True}).tool_use.max_calls == 1
    for use in (chat(tools=None).tool_use, chat(tools=[]).tool_use, message(tools=None).tool_use, NO_TOOLS):
        assert not use.calls
        assert use.for_template() is None


def test_what_templates_receive() -> None:
    weather, time = chat("none").tool_use.for_template() or []  # also tools that may not be called, as in vLLM
    described = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
    assert weather == {"type": "function", "function": described}
    assert time == {
        "type": "function",
        "function": {"name": "time", "parameters": {"type": "object", "properties": {}}},
    }
    assert Tool("time").schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert Tool("f", None, {"$ref": "#/$defs/f"}).schema == {"type": "object", "$ref": "#/$defs/f"}


def test_the_digest_covers_tools() -> None:
    requests = [chat(), chat(tools=[]), chat("none"), chat("required"), chat(named("time")), chat(named("weather"))]
    assert len({digest_of(fields) for fields in requests}) == len(requests)
    assert digest_of(chat()) == digest_of(chat())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools"),
    ],
)
def test_tools_of_the_server_are_unsupported(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        response(**fields)
    assert (refused.value.kind, refused.value.param) == (Kind.UNSUPPORTED, param)


def test_a_choice_without_tools() -> None:
    for body in ({"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "f"}, "tools": []}):
        with pytest.raises(ApiError) as refused:
            validate(ResponseRequest, {"input": "hi"} | body)
        assert (refused.value.kind, refused.value.param) == (Kind.INVALID, "tool_choice")
    with pytest.raises(ApiError, match="tools"):
        validate(CountTokensRequest, {"messages": SAY, "tool_choice": {"type": "any"}})


# --- the history of /v1/messages -----------------------------------------------------------------------------


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_uses_and_results_of_tools_in_the_history() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    uses = [{"type": "tool_use", "id": f"toolu_{i}", "name": "weather", "input": {"city": i}} for i in "ab"]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_a", "content": [text("rain"), text("!")]},
        {"type": "tool_result", "tool_use_id": "toolu_b", "is_error": True},
    ]
    said = [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [thinking, {"type": "redacted_thinking", "data": "x"}, text("I look"), *uses]},
        {"role": "user", "content": [*results, text("And now?")]},
        {"role": "assistant", "content": uses[:1]},
        {"role": "user", "content": results[:1]},
    ]
    turns = [turn.for_template() for turn in message(messages=said, system=[text("s")]).turns]
    calls = [
        {"id": f"toolu_{i}", "type": "function", "function": {"name": "weather", "arguments": {"city": i}}}
        for i in "ab"
    ]
    assert turns == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab\n\nc"},
        {"role": "assistant", "content": "I look", "tool_calls": calls, "reasoning_content": "hm"},
        {"role": "tool", "content": "rain!", "tool_call_id": "toolu_a"},
        {"role": "tool", "content": "", "tool_call_id": "toolu_b"},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "", "tool_calls": calls[:1]},
        {"role": "tool", "content": "rain!", "tool_call_id": "toolu_a"},
    ]
