"""`/openapi.json` describes every route, answers match it, and OpenAI's document agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import narrowing
import openai_document
import pytest
from fastapi import FastAPI
from openapi_spec_validator import validate
from sse_client import read
from stack import NAME, Stack
from typing_extensions import TypedDict

from gateway.endpoints import BATCHED, ENDPOINTS
from gateway.http.openapi import GENERATION_HEADERS, documented, undocumented
from gateway.http.openapi import document as document_of
from gateway.schemas import answers
from gateway.schemas.responses import LOGPROBS
from tests import schemas

# Values of the fields shared with OpenAI that Orca does not accept: a kind of value, a word, or values beyond a bound.
TOOLS = {"tools: maxItems 128"}
LENGTHS = {"max_tokens: minimum 1", "seed: minimum -9223372036854775808"}  # OpenAI's document rounds the latter
CONVERSATION = {
    "conversation: object",
    "conversation: string",
    "previous_response_id: minLength 1",
    "previous_response_id: maxLength 128",
    "input: minItems 1",
    "input: maxItems 4096",
    "truncation: 'auto'",
}
OTHER_ENDPOINTS = ("images/edits", "images/generations", "moderations", "videos")
NARROWED: dict[str, set[str]] = {
    "post /v1/batches": {
        "input_file_id: maxLength 100",
        *(f"endpoint: '/v1/{name}'" for name in OTHER_ENDPOINTS),
    },
    "post /v1/files": {f"purpose: '{use}'" for use in ("assistants", "evals", "fine-tune", "user_data", "vision")},
    "post /v1/completions": {"suffix: any string but ", "prompt: null", *(LENGTHS - {"max_tokens: minimum 1"})},
    "post /v1/chat/completions": {
        *TOOLS,
        *LENGTHS,
        "functions: any array but []",
        "function_call: object",
        "max_completion_tokens: minimum 1",
        "messages: maxItems 4096",
        "audio: object",
        "moderation: object",
        "prediction: object",
        "web_search_options: object",
        "modalities: any array but ['text']",
        "service_tier: 'scale'",
    },
    "post /v1/responses": {
        *TOOLS,
        *CONVERSATION,
        "context_management: any array but []",
        "moderation: object",
        "prompt: object",
        "max_tool_calls: minimum 1",
        "prompt_cache_key: maxLength 512",
        "user: maxLength 512",
        *(f"service_tier: '{word}'" for word in ("scale", "ultrafast")),
    },
    "post /v1/responses/input_tokens": {*TOOLS, *CONVERSATION, "input: null", "personality: string"},
}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    made: dict[str, Any] = http.get("/openapi.json").json()
    return made


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def served(routes: list[Any]) -> Iterator[tuple[str, str]]:
    """The method and path of each route of the app except those of the document."""
    for route in routes:
        router = getattr(route, "original_router", None)  # newer versions of FastAPI keep included routers as they are
        if router is not None:
            yield from served(router.routes)
        elif route.path != "/openapi.json" and not route.path.startswith(("/docs", "/ui")):
            yield from ((method.lower(), re.sub(r":\w+}", "}", route.path)) for method in route.methods)


# --- the document and the routes -----------------------------------------------------------------------------


def test_it_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_every_route_is_in_it(stack: Stack, document: dict[str, Any]) -> None:
    assert set(served(stack.app.routes)) == {(method, path) for method, path, _ in operations(document)}
    missing = undocumented(stack.app)
    assert not missing, f"give these routes **documented(...) of gateway.http.openapi: {', '.join(missing)}"
    silent = [f"{method} {path}" for method, path, operation in operations(document) if "description" not in operation]
    assert not silent, f"give the functions of these routes a docstring: {', '.join(silent)}"


def test_a_route_without_a_description_is_found() -> None:
    app = FastAPI()

    @app.get("/described", **documented(gives=answers.Load))
    @app.post("/silent")
    async def route() -> None: ...

    assert undocumented(app) == ["POST /silent"]


def test_two_types_with_one_name_are_an_error() -> None:
    class Load(TypedDict):
        other: str

    app = FastAPI()

    @app.get("/one", **documented(gives=answers.Load))
    @app.get("/two", **documented(gives=Load))
    async def route() -> None: ...

    with pytest.raises(AssertionError, match="Load"):
        document_of(app)


def test_everything_in_the_document_is_served(http: httpx.Client, document: dict[str, Any]) -> None:
    for method, path, _ in operations(document):
        answer = http.request(method, re.sub("{.*?}", "x", path), content=b"{")
        error = {} if answer.is_success else answer.json()["error"]
        code = error.get("code", error.get("type"))  # Anthropic's errors have only a type
        assert code not in ("not_found", "method_not_allowed", "not_found_error"), f"{method} {path}"


def test_errors_and_headers_are_in_it(document: dict[str, Any]) -> None:
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert {"200", "400", "401", "403", "404", "408", "413", "415", "429", "500", "503"} == set(chat["responses"])
    assert "Retry-After" in chat["responses"]["429"]["headers"]
    assert "Orca-Request" in chat["responses"]["200"]["headers"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert [p["name"] for p in chat["parameters"]] == [p["name"] for p in GENERATION_HEADERS]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in chat


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_errors_of_messages_are_in_it_in_anthropics_shape(
    http: httpx.Client, document: dict[str, Any], path: str
) -> None:
    responses = document["paths"][path]["post"]["responses"]
    assert "503" not in responses, "Anthropic's status is 529"
    for body in (b"", b'{"model": "other", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}'):
        assert str(http.post(path, content=body).status_code) in responses
    for status in responses.keys() - {"200"}:
        schema = responses[status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/MessageError"}
    error = http.post(path, content=b"").json()
    properties = document["components"]["schemas"]["MessageError"]["properties"]
    assert error.keys() == properties.keys()


# --- the page ------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text).replace("// ", "")
    addresses = re.findall(r"(?:src|href)=\"(.*?)\"|url: '(.*?)'", page.text)
    asked = [http.get("/" + (a or b)) for a, b in addresses]
    assert len(asked) == 4
    assert all(answer.status_code == 200 for answer in asked)
    assert '"validatorUrl": null' in page.text
    assert http.get("/docs/nothing.js").status_code == 404


# --- answers -------------------------------------------------------------------------------------------------


def strict(part: dict[str, Any]) -> dict[str, Any]:
    """Objects have no other fields."""
    if isinstance(part.get("properties"), dict) and part.get("title") != "TokenizerInfo":
        part["additionalProperties"] = False
    return part


def check(document: dict[str, Any], method: str, path: str, kind: str, value: Any, status: int = 200) -> None:
    """Asserts that `value` matches Orca's document, and OpenAI's if it has the operation."""
    content = document["paths"][path][method]["responses"][str(status)]["content"]
    root = {**content[kind]["schema"], "components": schemas.rewritten(document["components"], strict)}
    jsonschema.Draft202012Validator(root).validate(value)
    theirs = openai_document.operation(method, path)
    found = theirs and theirs["responses"].get(str(status), {}).get("content", {}).get(kind)
    if found:
        openai_document.check_schema(found["schema"], value)


BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "hello né", "max_tokens": 4},
        {"prompt": ["hello", "b"], "n": 2, "max_tokens": 4, "logprobs": 2, "return_token_ids": True},
    ],
    "/v1/chat/completions": [
        CHAT,
        CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "service_tier": "fast", "return_token_ids": True},
    ],
    "/v1/responses": [
        {"input": "hi"},
        {"input": "né", "include": [LOGPROBS], "top_logprobs": 1, "user": "me", "max_output_tokens": 3},
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}},
    ],
}


@pytest.mark.parametrize("path", BODIES)
def test_answers_are_as_both_documents_say(http: httpx.Client, document: dict[str, Any], path: str) -> None:
    for body in BODIES[path]:
        check(document, "post", path, "application/json", http.post(path, json=body).json())
        usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        for options in ({}, usage):
            if path == "/v1/completions" and options:
                continue  # OpenAI's document has a usage in every chunk or in none
            events = read(http.post(path, json=body | {"stream": True} | options))
            assert len(events) > 2
            for event in events:
                if event.data != "[DONE]":
                    check(document, "post", path, "text/event-stream", event.json())


def test_the_other_answers_are_as_both_documents_say(http: httpx.Client, document: dict[str, Any]) -> None:
    first = http.post("/v1/responses", json={"input": "hi"}).json()["id"]
    id = http.post("/v1/responses", json={"input": "a", "previous_response_id": first}).json()["id"]
    running = http.post("/v1/responses", json={"input": "SLOW", "background": True, "ignore_eos": True}).json()["id"]
    asked: list[tuple[str, str, str, Any]] = [
        ("post", "/v1/completions", "/v1/completions", {"prompt": "hello", "echo": True, "prompt_logprobs": 2}),
        ("post", "/v1/chat/completions", "/v1/chat/completions", CHAT | {"prompt_logprobs": 2}),
        ("get", "/v1/models", "/v1/models", None),
        ("get", "/v1/models/{name}", f"/v1/models/{NAME}", None),
        ("post", "/v1/responses/input_tokens", "/v1/responses/input_tokens", {"input": "hi"}),
        ("get", "/v1/responses/{id}", f"/v1/responses/{id}", None),
        ("get", "/v1/responses/{id}/input_items", f"/v1/responses/{id}/input_items", None),
        ("post", "/v1/responses/{id}/cancel", f"/v1/responses/{running}/cancel", None),
        ("delete", "/v1/responses/{id}", f"/v1/responses/{id}", None),
        ("get", "/version", "/version", None),
        ("get", "/load", "/load", None),
        ("get", "/tokenizer_info", "/tokenizer_info", None),
        ("post", "/tokenize", "/tokenize", {"prompt": "a"}),
        ("post", "/detokenize", "/detokenize", {"tokens": [1]}),
    ]
    for method, path, address, body in asked:
        answer = http.request(method, address, json=body)
        assert answer.status_code == 200, answer.text
        check(document, method, path, "application/json", answer.json())
    refused = http.post("/v1/completions", content=b"{")
    check(document, "post", "/v1/completions", "application/json", refused.json(), status=400)


# --- requests ------------------------------------------------------------------------------------------------


def test_requests_are_openai_s_but_for_what_is_declared(document: dict[str, Any]) -> None:
    compared = set()
    for method, path, operation in operations(document):
        theirs = openai_document.operation(method, path)
        if theirs is None or "requestBody" not in theirs:
            continue
        name = f"{method} {path}"
        compared.add(name)
        ours, of_theirs = _body(operation), _body(theirs)
        less = narrowing.narrowed(of_theirs, openai_document.components(), ours, document["components"])
        declared = NARROWED.get(name, set())
        assert not less - declared, (
            f"{name} takes less than OpenAI's; declare it in NARROWED: {sorted(less - declared)}"
        )
        assert not declared - less, f"{name} takes this now; remove it from NARROWED: {sorted(declared - less)}"
    assert compared >= NARROWED.keys()


def _body(operation: dict[str, Any]) -> Any:
    (content,) = operation["requestBody"]["content"].values()
    return content["schema"]


def test_batches_take_the_endpoints_that_openai_s_document_names() -> None:
    named = openai_document.whole()["components"]["schemas"]["CreateBatchRequest"]["properties"]["endpoint"]["enum"]
    assert set(BATCHED) == ENDPOINTS.keys() & set(named)
