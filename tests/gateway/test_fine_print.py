"""What clients rely on beyond the answer itself: ends, lengths, HEAD, encodings, and the names in errors."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import pytest

from gateway.errors import ApiError
from gateway.http.body import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.responses import ResponseRequest


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/openapi.json", "/version"])
def test_head_is_get_without_the_body(http: httpx.Client, path: str) -> None:
    head, got = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type" if got.content else "server"]


def test_a_compressed_body_is_refused_by_name(http: httpx.Client) -> None:
    body = gzip.compress(b'{"prompt": "a"}')
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    refused = http.post("/v1/completions", content=body, headers=headers)
    assert refused.status_code == 415
    assert "'gzip'" in refused.json()["error"]["message"]


def test_an_unknown_previous_response_is_a_wrong_field(http: httpx.Client) -> None:
    refused = http.post("/v1/responses", json={"input": "a", "previous_response_id": "resp_" + "0" * 32})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert refused.json()["error"]["param"] == "previous_response_id"


def test_a_response_has_all_keys(http: httpx.Client) -> None:
    made = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 2, "top_p": 0}).json()
    assert {"completed_at", "presence_penalty", "frequency_penalty", "max_tool_calls", "usage"} <= made.keys()
    assert made["top_p"] == 0


CALL: dict[str, Any] = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": 5}}]}


@pytest.mark.parametrize(
    ("schema", "body", "param"),
    [
        (ChatRequest, {"messages": [CALL]}, "messages[0].tool_calls[0].function.arguments"),
        (ChatRequest, {"messages": [{"content": "a"}]}, "messages[0].role"),
        (ResponseRequest, {"input": [{"type": "web_search_call", "action": {}}]}, "input[0].type"),
    ],
)
def test_errors_name_fields_of_the_body(schema: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate(schema, body)
    assert caught.value.param == param
