"""The `param` of an error is a field that the body has or could have, not a name that only the server knows."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from gateway.batches.routes import BatchRequest
from gateway.errors import ApiError
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.messages import MessageRequest
from gateway.schemas.responses import ResponseRequest
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
TAGS = {"structures": [{"begin": "<f", "schema": SCHEMA, "end": ">"}], "triggers": ["<f"]}
TEXT = [{"type": "text", "text": "a"}]
SHARED: dict[str, Any] = {
    "temperature": 1,
    "logit_bias": {"1": 2},
    "stop_token_ids": [1],
    "metadata": {"a": "b"},
    "stream": False,
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM_CALL = {"id": "d", "type": "custom", "custom": {"name": "g", "input": "a"}}
REGEX = {"syntax": "regex", "definition": "a"}
CUSTOM = {"name": "g", "description": "d", "format": {"type": "grammar", "grammar": REGEX}}
CHAT: dict[str, Any] = SHARED | {
    "chat_template_kwargs": {"a": 1},
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM_CALL]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": {"a": 1}}},
        {"role": "tool", "content": "b", "tool_call_id": "c"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "custom", "custom": CUSTOM}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "stop": ["a"],
    "stream": True,
    "stream_options": {"include_usage": True},
}
BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (ChatRequest, CHAT),
    "json_schema": (
        ChatRequest,
        {
            "messages": CHAT["messages"],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    "structural tag": (
        ChatRequest,
        {"messages": CHAT["messages"], "response_format": {"type": "structural_tag", **TAGS}},
    ),
    "completions": (
        CompletionRequest,
        SHARED | {"prompt": ["a", [1, 2]], "structured_outputs": {"structural_tag": TAGS}},
    ),
    "responses": (
        ResponseRequest,
        SHARED
        | {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "b"},
                {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "a"},
            ],
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}, "verbosity": None},
            "tools": [
                {"type": "function", **FUNCTION},
                {"type": "custom", "name": "g", "format": {"type": "grammar", **REGEX}},
            ],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"],
        },
    ),
    "messages": (
        MessageRequest,
        SHARED
        | {
            "max_tokens": 5,
            "system": [{"type": "text", "text": "a"}],
            "messages": [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "a", "signature": "b"},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]}
                    ],
                },
            ],
            "metadata": {"user_id": "me"},
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "f"},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
    "tokenize": (TokenizeRequest, {"messages": CHAT["messages"], "tools": CHAT["tools"]}),
    "detokenize": (DetokenizeRequest, {"tokens": [1, 2]}),
    "batches": (
        BatchRequest,
        {
            "input_file_id": "file-1",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 4000},
        },
    ),
}
WRONG: list[Any] = [
    None,
    5,
    -1.5,
    True,
    "x",
    "",
    [],
    [5],
    [None],
    [[]],
    {},
    {"x": 1},
    {"type": "x"},
    {"type": 5},
    [{"type": "x"}],
]
STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(each for name, part in inner for each in paths(part, (*path, name)))]


def at(body: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        body = body[step]
    return body


def misses(body: Any, param: str) -> bool:
    """Whether a step of `param` but the last one is not in the body, or the last one is in what is no object."""
    steps = [int(index) if index else name for index, name in STEP.findall(param)]
    for place, step in enumerate(steps):
        inside = step < len(body) if isinstance(body, list) and isinstance(step, int) else False
        if not inside and not (isinstance(body, dict) and step in body):
            return not (isinstance(body, dict) and place == len(steps) - 1)
        body = body[step]
    return False


@pytest.mark.parametrize("name", BODIES)
def test_errors_name_what_the_body_has(name: str) -> None:
    model, good = BODIES[name]
    validate(model, copy.deepcopy(good))
    found = []
    for path in paths(good):
        for wrong in [*WRONG, "remove", "add"]:
            body = copy.deepcopy(good)
            outer = at(body, path[:-1])
            if wrong == "remove":
                del outer[path[-1]]
            elif wrong == "add":
                if not isinstance(outer[path[-1]], dict):
                    continue
                outer[path[-1]]["unknown"] = 1
            else:
                outer[path[-1]] = wrong
            try:
                validate(model, copy.deepcopy(body))
            except ApiError as error:
                if error.param is None or misses(body, error.param):
                    found.append((path, wrong, error.param, error.message))
    assert found == []


@pytest.mark.parametrize("name", BODIES)
def test_an_unknown_field_is_named_and_can_be_ignored(name: str) -> None:
    model, good = BODIES[name]
    for path in [(), *paths(good)]:
        for field in ("unknown", "name", "function", "text"):
            body = copy.deepcopy(good)
            outer = at(body, path)
            if not isinstance(outer, dict) or field in outer:
                continue
            outer[field] = {"a": 1}
            try:
                validate(model, copy.deepcopy(body))
            except ApiError as error:
                if not error.message.startswith("Unknown parameter"):
                    continue
                steps = [int(index) if index else step for index, step in STEP.findall(error.param or "")]
                assert steps == [*path, field]
                validate(model, body, ignore_unknown=True)
                assert body == good
