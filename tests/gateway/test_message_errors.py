"""Errors in Anthropic's format, with the statuses that its official client expects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from sse_client import read
from stack import NAME, Stack

from gateway.gateway import Gateway
from services.settings.settings import Settings

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
SAY: list[Any] = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": NAME, "messages": SAY, "max_tokens": 9}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}

# error -> (fields, a word of the message)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "null messages": ({"messages": None}, "messages"),
    "no max_tokens": ({"max_tokens": None}, "max_tokens"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "a role there is not": ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    "a number as content": ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    "no content": ({"messages": [{"role": "user", "content": []}]}, "it is an empty list"),
    "a block that is no object": ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content"),
    "an image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image'"),
    "an object as the type of a block": ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "with a type"),
    "a result of no tool": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "messages[0].content[0].tool_use_id",
    ),
    "a result with an image": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}]},
        "'image'",
    ),
    "a result by the assistant": (
        {"messages": [*SAY, {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
        "role 'assistant' cannot have a block of type 'tool_result'",
    ),
    "a search of the server": (
        {"messages": [*SAY, {"role": "assistant", "content": [{"type": "server_tool_use", "id": "t"}]}]},
        "'server_tool_use'",
    ),
    "a tool without a schema": ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    "a tool of the server": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    "a choice of another tool": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "'g'"),
    "a choice of no tool": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "must have the 'name'"),
    "a tool choice": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "thinking": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    "a kind of thinking": ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    "an output format": ({"output_config": {"format": {"type": "json_object", "schema": {}}}}, "output_config"),
    "effort": ({"output_config": {"effort": "high"}}, "output_config"),
    "temperature 1.5": ({"temperature": 1.5}, "temperature"),
    "a number as system": ({"system": 5}, "system"),
    "17 stop sequences": ({"stop_sequences": ["a"] * 17}, "stop_sequences"),
    "an empty stop sequence": ({"stop_sequences": [""]}, "stop_sequences"),
    "OpenAI's name for them": ({"stop": ["a"]}, "stop"),
    "metadata of another name": ({"metadata": {"name": "me"}}, "metadata"),
    "a number as user": ({"metadata": {"user_id": 5}}, "metadata"),
    "a service tier there is not": ({"service_tier": "flex"}, "service_tier"),
    "a list as service tier": ({"service_tier": []}, "service_tier"),
    "fast": ({"speed": "fast"}, "speed"),
    "a place": ({"inference_geo": "us"}, "inference_geo"),
    "two choices": ({"n": 2}, "n"),
    "an unknown field": ({"nonsense": 1}, "nonsense"),
    "what the template refuses": ({"messages": [{"role": "user", "content": "refuse me"}]}, "The template refuses"),
    "a prompt that is too long": ({"messages": [{"role": "user", "content": "a" * 600}]}, "512"),
    "a bound that is too high": ({"max_tokens": 512}, "512"),
}


def check(response: httpx.Response, status: int, kind: str) -> str:
    """Asserts the error; returns its message."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    assert body["request_id"] == response.headers["request-id"]
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_field(http: httpx.Client, name: str) -> None:
    fields, named = WRONG[name]
    message = check(http.post(PATH, json=BODY | fields), 400, "invalid_request_error")
    assert named in message
    assert http.post(PATH, json=BODY | fields | {"stream": True}).json()["error"]["message"] == message


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "none"}, "output_config": {}},
        {"tools": None, "stop_sequences": None, "system": None, "metadata": None, "temperature": None, "top_k": None},
        {"metadata": {"user_id": "me"}, "service_tier": "standard_only", "speed": "standard"},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "none"}},
        {"cache_control": {"type": "ephemeral"}, "service_tier": "auto", "output_config": {"effort": None}},
        {"max_tokens": 9.0, "top_k": 1, "top_p": 0.5, "temperature": 1, "nothing": None},
        {"system": [], "messages": [{"role": "user", "content": [{"type": "text", "text": "hello", "new": None}]}]},
    ],
)
def test_fields_without_an_effect_are_accepted(http: httpx.Client, fields: dict[str, Any]) -> None:
    made = http.post(PATH, json=BODY | fields)
    assert made.status_code == 200, made.text
    assert made.json()["content"][0]["text"] == http.post(PATH, json=BODY).json()["content"][0]["text"]


def test_other_errors(http: httpx.Client) -> None:
    assert "JSON" in check(http.post(PATH, content=b"{"), 400, "invalid_request_error")
    check(http.post(PATH, content=b"a" * 100_001), 413, "request_too_large")
    assert "claude-17" in check(http.post(PATH, json=BODY | {"model": "claude-17"}), 404, "not_found_error")
    check(http.post(PATH + "/batches", json={}), 404, "not_found_error")
    check(http.get(PATH), 405, "invalid_request_error")
    failing = {"messages": [{"role": "user", "content": "FAIL"}]}
    for stream in (False, True):
        message = check(http.post(PATH, json=BODY | failing | {"stream": stream}), 500, "api_error")
        assert "the prompt said so" in message
    begun = {"messages": [{"role": "user", "content": "FAILabc"}], "stream": True}
    streamed = http.post(PATH, json=BODY | begun, headers={"x-request-id": "mine"})
    told = read(streamed)[-1].json()
    assert told["request_id"] == streamed.headers["request-id"] == "mine"


def test_count_tokens_refuses_what_a_message_would(http: httpx.Client) -> None:
    assert "max_tokens" in check(http.post(COUNT, json=BODY), 400, "invalid_request_error")
    check(http.post(COUNT, json={"messages": SAY, "model": "claude-17"}), 404, "not_found_error")
    check(http.post(COUNT, json={"messages": SAY, "tools": [TOOL, TOOL]}), 400, "invalid_request_error")
    check(http.post(COUNT, json={"messages": [{"role": "user", "content": "refuse me"}]}), 400, "invalid_request_error")


def test_the_format_of_errors(http: httpx.Client) -> None:
    """Other routes have OpenAI's errors unless the client is Anthropic's."""
    assert "code" in http.get("/v1/models/none").json()["error"]
    version = {"anthropic-version": "2023-06-01"}
    check(http.get("/v1/models/none", headers=version), 404, "not_found_error")
    check(http.get("/v1/nowhere", headers=version), 404, "not_found_error")


def test_an_uncaught_exception(stack: Stack, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Gateway = stack.app.state.gateway.first
    monkeypatch.setattr(gateway.shards, "open", None)
    assert "log" in check(http.post(PATH, json=BODY), 500, "api_error")
    assert http.post("/v1/completions", json={"prompt": "a"}).json()["error"]["code"] == "internal_error"


# --- keys ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    settings = Settings(api_keys={"key-of-alice": "alice", "key-of-bob": "bob"})
    with Stack(redis_url, "guarded-messages", tiny_folder, settings) as stack:
        yield stack


def client_of(stack: Stack, **how: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=stack.url, **({"max_retries": 0} | how))


def test_the_official_client_s_keys(guarded: Stack) -> None:
    asked: Any = {"model": NAME, "messages": SAY, "max_tokens": 3}
    for key in ({"api_key": "key-of-alice"}, {"auth_token": "key-of-alice"}):
        with client_of(guarded, **key) as good:
            assert good.messages.create(**asked).content
    with client_of(guarded, api_key="other") as bad:
        for call in (lambda: bad.messages.create(**asked), lambda: bad.messages.count_tokens(model=NAME, messages=SAY)):
            with pytest.raises(anthropic.AuthenticationError) as error:
                call()
            assert error.value.type == "authentication_error"
            assert error.value.request_id
        with pytest.raises(anthropic.AuthenticationError) as error:
            bad.models.list()
        assert error.value.type == "authentication_error"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "key-of-alice"}, 200),
        ({"x-api-key": "key-of-alice", "Authorization": "Bearer other"}, 200),
        ({"x-api-key": "other", "Authorization": "Bearer key-of-alice"}, 200),
        ({"x-api-key": "other"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "Bearer key-of-alice"}, 401),
    ],
)
def test_both_headers_can_have_the_key(guarded: Stack, headers: dict[str, str], status: int) -> None:
    answer = httpx.post(guarded.url + PATH, json=BODY, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert "alice" not in check(answer, 401, "authentication_error")
    assert httpx.get(guarded.url + "/v1/models", headers=headers).status_code == status


# --- when nobody can take it ---------------------------------------------------------------------------------


@pytest.fixture
def lonely(redis_url: str, tiny_folder: Path) -> Iterator[Stack]:
    """A gateway on a pool without an engine."""
    with Stack(redis_url, f"lonely-{time.monotonic_ns()}", tiny_folder, Settings(max_waiting=1), engine=False) as stack:
        yield stack


def test_the_client_retries(lonely: Stack) -> None:
    answer = httpx.post(lonely.url + PATH, json=BODY)
    check(answer, 529, "overloaded_error")
    assert int(answer.headers["retry-after"]) >= 1
    tries: list[int] = []
    hooks: Any = {"response": [lambda response: tries.append(response.status_code)]}
    with client_of(
        lonely, api_key="none", max_retries=1, http_client=anthropic.DefaultHttpxClient(event_hooks=hooks)
    ) as it:
        with pytest.raises(anthropic.APIStatusError) as error:
            it.messages.create(model=NAME, messages=SAY, max_tokens=9)
        assert (error.value.status_code, error.value.type) == (529, "overloaded_error")
    assert tries == [529, 529]
