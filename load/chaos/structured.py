"""Requests whose output is constrained, for a chaos run, and the check of their answers."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from load.trace import HttpRequest
from load.workloads import BEGINNINGS, QUESTIONS
from services.client.sse import Choice, StreamedAnswer

COMMON = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}

# All values are bounded, so that most documents end by themselves.
WORD = {"type": "string", "pattern": "^[a-z]{1,12}$"}
PERSON = {
    "type": "object",
    "properties": {
        "name": WORD,
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "languages": {"type": "array", "items": {"enum": ["English", "French", "Latin"]}, "minItems": 1, "maxItems": 3},
        "member": {"type": "boolean"},
    },
    "required": ["name", "age", "languages", "member"],
    "additionalProperties": False,
}
SHAPE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["kind", "radius"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "polygon"}, "points": {"$ref": "#/$defs/points"}},
            "required": ["kind", "points"],
            "additionalProperties": False,
        },
    ],
    "$defs": {
        "points": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
            "minItems": 3,
            "maxItems": 8,
        }
    },
}
LIST = {"type": "array", "items": WORD | {"maxLength": 12}, "minItems": 6, "maxItems": 10}
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]"
COLOURS = ["red", "yellow and a little green", "blue"]

WEATHER = {
    "type": "object",
    "properties": {"city": WORD, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "add_person", "description": "Adds a person.", "parameters": PERSON}},
]


def constrained(length: int) -> list[HttpRequest]:
    """Requests for documents and tool calls of up to four times `length` tokens."""
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 4 * length}
    seeded: dict[str, Any] = {"temperature": 1, "seed": 7, "max_tokens": 4 * length}
    return [
        _chat("person", 0, greedy | _schema(PERSON)),
        _chat("person, seeded, two choices", 1, seeded | _schema(PERSON) | {"n": 2}),
        _chat("shape, seeded", 2, seeded | _schema(SHAPE)),
        _chat("list, log probabilities", 3, seeded | _schema(LIST) | {"logprobs": True, "top_logprobs": 2}),
        _chat("list, penalties", 4, seeded | _schema(LIST) | {"presence_penalty": 0.5, "repetition_penalty": 1.1}),
        _completion("person, completion", 0, seeded | _schema(PERSON)),
        _completion("shape, three choices", 1, seeded | _schema(SHAPE) | {"n": 3, "top_p": 0.95}),
        _completion("date", 2, seeded | {"structured_outputs": {"regex": DATE}}),
        _completion("colour", 3, seeded | {"structured_outputs": {"choice": COLOURS}}),
        _chat("tools", 5, seeded | {"tools": TOOLS, "tool_choice": "required"}),
        _chat("tools, two choices", 0, seeded | {"tools": TOOLS, "tool_choice": "required", "n": 2}),
        _chat("one tool", 1, greedy | _named("add_person") | {"parallel_tool_calls": False}),
    ]


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    described = {"name": "document", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _named(name: str) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": name}}}


def _completion(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    return HttpRequest("/v1/completions", COMMON | {"prompt": BEGINNINGS[text]} | fields, name)


def _chat(name: str, text: int, fields: dict[str, Any]) -> HttpRequest:
    messages = [{"role": "user", "content": QUESTIONS[text]}]
    return HttpRequest("/v1/chat/completions", COMMON | {"messages": messages} | fields, name)


def is_constrained(request: HttpRequest) -> bool:
    return any(field in request.body for field in ("response_format", "structured_outputs", "tools"))


def ended_by_themselves(request: HttpRequest, answer: StreamedAnswer) -> list[Choice]:
    """The choices of a constrained request that the model ended itself."""
    if not is_constrained(request):
        return []
    return [choice for choice in answer.choices.values() if choice.finish_reason not in (None, "length")]


def error_in(request: HttpRequest, answer: StreamedAnswer) -> str:
    """Why a choice that the model ended itself violates the request's constraint; empty if none does."""
    errors = (_error(request.body, choice) for choice in ended_by_themselves(request, answer))
    return next((error for error in errors if error), "")


def error_of(text: str, schema: dict[str, Any]) -> str:
    """Why `text` is not JSON that is valid by `schema`; empty if it is."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return f"not JSON, {error}"
    worst = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(document))
    return str(worst.message) if worst else ""


def _error(body: dict[str, Any], choice: Choice) -> str:
    if "tools" in body:
        return _error_of_calls(body, choice)
    if "response_format" in body:
        return _quoted(error_of(choice.text, body["response_format"]["json_schema"]["schema"]), choice.text)
    allowed = body["structured_outputs"]
    held = choice.text in allowed["choice"] if "choice" in allowed else re.fullmatch(allowed["regex"], choice.text)
    return "" if held else f"{choice.text!r} is not one of {allowed}"


def _error_of_calls(body: dict[str, Any], choice: Choice) -> str:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    if body["tool_choice"] != "required":
        name = body["tool_choice"]["function"]["name"]
        schemas = {name: schemas[name]}
    if not choice.calls:
        return f"no call, but {choice.text!r}"
    if choice.finish_reason != "tool_calls":
        return f"finish_reason {choice.finish_reason!r} after calls"
    for call in choice.calls:
        if call.name not in schemas:
            return f"{call.name!r} is called, the tools are {sorted(schemas)}"
        if error := _quoted(error_of(call.arguments, schemas[call.name]), call.arguments):
            return error
    return ""


def _quoted(error: str, text: str) -> str:
    return f"{error}: {json.dumps(text)}" if error else ""
