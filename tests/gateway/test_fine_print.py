"""What clients rely on beyond the answer itself: ends, lengths, HEAD, encodings, and the names in errors."""

from __future__ import annotations

import gzip

import httpx
import pytest


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


def test_a_response_has_all_keys(http: httpx.Client) -> None:
    made = http.post("/v1/responses", json={"input": "a", "max_output_tokens": 2, "top_p": 0}).json()
    assert {"completed_at", "presence_penalty", "frequency_penalty", "max_tool_calls", "usage"} <= made.keys()
    assert made["top_p"] == 0
