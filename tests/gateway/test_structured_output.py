"""Requests with a constraint, through a served gateway: the grammar reaches the engine, and errors reach the client."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel
from stack import Stack

from gateway.answer.choice import failure
from gateway.errors import Kind
from gateway.grammars import check
from gateway.grammars.rules import json_rule, regex_rule
from services.errors import GrammarError
from services.messages import End
from services.requests import NO_GRAMMAR, FinishReason

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
CONVERSATION = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": CONVERSATION},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": CONVERSATION, "max_tokens": 9},
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def with_schema(path: str, schema: Any) -> tuple[dict[str, Any], str]:
    """The fields by which each API takes a schema, and the name that errors have."""
    named = {"name": "answer", "schema": schema}
    match path:
        case "/v1/responses":
            return {"text": {"format": {"type": "json_schema", **named}}}, "text.format"
        case "/v1/messages":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}, "output_config.format"
        case _:
            return {"response_format": {"type": "json_schema", "json_schema": named}}, "response_format"


def message(response: httpx.Response, path: str, param: str | None = None) -> str:
    """The message of a 400, whose `param` is checked where the API has it."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    if path != MESSAGES:
        assert error["param"] == param
    text: str = error["message"]
    return text


@pytest.mark.parametrize("path", BODIES)
def test_the_grammar_reaches_the_engine(stack: Stack, http: httpx.Client, path: str) -> None:
    fields, _ = with_schema(path, SCHEMA)
    for given, rule in ((fields, json_rule(SCHEMA)), ({"structured_outputs": {"regex": "a+"}}, regex_rule("a+"))):
        answer = http.post(path, json=BODIES[path] | given)
        assert answer.status_code == 200, answer.text
        assert stack.engine.asked[-1].sampling.grammar == rule.grammar()


def test_all_choices_have_the_grammar(stack: Stack, http: httpx.Client) -> None:
    before = len(stack.engine.asked)
    http.post(COMPLETIONS, json={"prompt": ["a", "b"], "n": 2, "guided_regex": "a+"})
    grammars = [request.sampling.grammar for request in stack.engine.asked[before:]]
    assert grammars == [regex_rule("a+").grammar()] * 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_recursion_without_an_end_is_refused(http: httpx.Client, path: str, stream: bool) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/A B"}}, "required": ["next"]}
    root = {"type": "object", "properties": {"first": {"$ref": "#/$defs/A B"}}, "$defs": {"A B": node}}
    fields, param = with_schema(path, root)
    for given, name in ((fields, param), ({"guided_json": root}, "guided_json")):
        refused = message(http.post(path, json=BODIES[path] | given | {"stream": stream}), path, name)
        assert refused.startswith(f"Invalid '{name}': '$ref' at '#/$defs/A B/properties/next' is a recursion without")


@pytest.mark.parametrize("tool", ["a", "b", "c"])
def test_one_tool_that_cannot_be_enforced_is_named_in_all_apis(http: httpx.Client, tool: str) -> None:
    endless = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    schemas = {name: endless if name == tool else SCHEMA for name in "abc"}
    functions = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    tools: dict[str, dict[str, Any]] = {
        CHAT: {"tools": [{"type": "function", "function": each} for each in functions], "tool_choice": "required"},
        RESPONSES: {"tools": [{"type": "function", **each} for each in functions], "tool_choice": "required"},
        MESSAGES: {
            "tools": [{"name": name, "input_schema": schema} for name, schema in schemas.items()],
            "tool_choice": {"type": "any"},
        },
    }
    for path, fields in tools.items():
        refused = message(http.post(path, json=BODIES[path] | fields), path, "tools")
        assert f"the parameters of '{tool}' cannot be enforced: '$ref' at '#/properties/x'" in refused


@pytest.mark.parametrize("path", BODIES)
def test_a_schema_that_cannot_be_followed_is_refused(http: httpx.Client, path: str) -> None:
    fields, param = with_schema(path, {"type": "array", "uniqueItems": True})
    for stream in (False, True):
        text = message(http.post(path, json=BODIES[path] | fields | {"stream": stream}), path, param)
        assert text == f"Invalid '{param}': failed to compile JSON schema: Unimplemented keys: [\"uniqueItems\"]."


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}])
def test_only_the_grammar_decides_where_the_output_ends(http: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    given, param = with_schema(path, SCHEMA)
    (name,) = fields
    assert f"'{param}'" in message(http.post(path, json=BODIES[path] | given | fields), path, name)
    neutral = dict.fromkeys(fields, 0 if name == "min_tokens" else False)
    assert http.post(path, json=BODIES[path] | given | neutral).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["x"], "stop_token_ids": [3]},
        {"logit_bias": {"5": 1}, "allowed_token_ids": [5, 6], "bad_words": ["the"]},
        {"echo": True, "logprobs": 1, "prompt_logprobs": 1},
        {"max_tokens": 0, "echo": True},
    ],
)
def test_other_fields_go_with_it(http: httpx.Client, fields: dict[str, Any]) -> None:
    answer = http.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {"guided_regex": "a+"} | fields)
    assert answer.status_code == 200, answer.text


def test_a_continued_message_goes_with_it(stack: Stack, http: httpx.Client) -> None:
    begun = [*CONVERSATION, {"role": "assistant", "content": '{"city": '}]
    body = {"messages": begun, "continue_final_message": True, "guided_regex": '"[a-z]+"}'}
    assert http.post(CHAT, json=body).status_code == 200
    assert stack.engine.asked[-1].sampling.grammar == regex_rule('"[a-z]+"}').grammar()


def test_the_response_says_its_format(http: httpx.Client) -> None:
    fields, _ = with_schema(RESPONSES, SCHEMA)
    made = http.post(RESPONSES, json=BODIES[RESPONSES] | fields).json()
    assert made["text"] == {"format": fields["text"]["format"] | {"strict": False}}
    assert http.get(f"{RESPONSES}/{made['id']}").json()["text"] == made["text"]


class City(BaseModel):
    name: str
    population: int | None = None


def test_official_clients_send_schemas_of_pydantic(stack: Stack, client: openai.OpenAI) -> None:
    """The engine of these tests repeats the prompt, which is the document."""
    document = '{"name": "Bern", "population": null}'
    said: Any = [{"role": "user", "content": document}]
    response = client.responses.parse(model="tiny", input=document, text_format=City)
    assert "population" in stack.engine.asked[-1].sampling.grammar
    assert response.text.format.type == "json_schema"  # type: ignore[union-attr]
    client.chat.completions.create(model="tiny", messages=said, response_format={"type": "json_object"})
    assert stack.engine.asked[-1].sampling.grammar == json_rule({"type": "object"}).grammar()
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as messages:
        messages.messages.create(
            model="tiny",
            max_tokens=30,
            messages=said,
            output_config={"format": {"type": "json_schema", "schema": anthropic.transform_schema(City)}},
        )
    assert "population" in stack.engine.asked[-1].sampling.grammar


def test_grammars_are_not_compiled_on_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[bool] = []
    original = check.GrammarCheck.checked

    def recorded(*arguments: Any) -> str:
        try:
            asyncio.get_running_loop()
            loops.append(True)
        except RuntimeError:
            loops.append(False)
        return original(*arguments)

    monkeypatch.setattr(check.GrammarCheck, "checked", recorded)
    for path in BODIES:
        assert http.post(path, json=BODIES[path] | {"guided_regex": "a"}).status_code == 200
    assert loops == [False] * len(BODIES)


def test_a_grammar_that_fails_in_the_engine_is_a_client_error() -> None:
    reason = f"{NO_GRAMMAR}: {GrammarError('the work exceeds a limit')}"
    error = failure(End(FinishReason.ERROR, error=reason))
    assert error is not None
    assert error.kind is Kind.INVALID
    assert "exceeds a limit" in error.message
