"""The bytes of plain streams as common clients read them; events have ids only if requested."""

from __future__ import annotations

import codecs
import json
from typing import Any

import httpx
import pytest

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "SLOWné 🐳 hello", "max_tokens": 12},
    CHAT: {"messages": [{"role": "user", "content": "SLOWné 🐳 hello"}], "max_tokens": 12},
}
USAGE = {"stream_options": {"include_usage": True}}


class BenchReader:
    """How `vllm bench serve` reads a stream: each read from the socket is stripped; a block ends at an
    empty line; a colon begins a comment; a leading `data: ` is removed, and the rest is JSON or [DONE].
    A last block without an empty line counts if it is complete.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self.chunks: list[Any] = []
        self.done = False

    def read(self, data: bytes) -> None:
        self._text += self._decoder.decode(data.strip())
        *blocks, self._text = self._text.split("\n\n")
        for block in blocks:
            self._take(block.strip())
        if self._text.startswith("data: ") and self._whole(self._text[6:]):
            self._take(self._text)
            self._text = ""

    def _take(self, block: str) -> None:
        if not block or block.startswith(":"):
            return
        data = block.removeprefix("data: ")
        if data == "[DONE]":
            self.done = True
        else:
            self.chunks.append(json.loads(data))

    def _whole(self, data: str) -> bool:
        try:
            return data == "[DONE]" or bool(json.loads(data))
        except ValueError:
            return False


@pytest.mark.parametrize("path", BODIES)
def test_vllm_s_bench_reads_the_stream(http: httpx.Client, path: str) -> None:
    reader = BenchReader()
    with http.stream("POST", path, json=BODIES[path] | {"stream": True} | USAGE) as response:
        for data in response.iter_raw():
            reader.read(data)
    assert reader.done
    choices = [chunk["choices"][0] for chunk in reader.chunks if chunk["choices"]]
    text = "".join((c["delta"]["content"] if "delta" in c else c["text"]) for c in choices)
    assert text.startswith("SLOWn" if path == COMPLETIONS else "SLOW")
    assert reader.chunks[-1]["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("path", BODIES)
def test_every_block_of_a_plain_stream_begins_with_data(http: httpx.Client, path: str) -> None:
    text = http.post(path, json=BODIES[path] | {"stream": True} | USAGE).text
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)


@pytest.mark.parametrize("path", [*BODIES, RESPONSES])
@pytest.mark.parametrize("header", ["Orca-Resumable", "Idempotency-Key", "none"])
def test_resumable_streams_have_ids(http: httpx.Client, path: str, header: str) -> None:
    body = {"input": "hi"} if path == RESPONSES else BODIES[path]
    headers = {"Orca-Resumable": {"Orca-Resumable": "true"}, "Idempotency-Key": {"Idempotency-Key": f"framing {path}"}}
    response = http.post(path, json=body | {"stream": True}, headers=headers.get(header, {}))
    assert ("id: " in response.text) == (header != "none")
    request = response.headers["orca-request"]
    again = f"{RESPONSES}/{request}?stream=true" if path == RESPONSES else f"/v1/streams/{request}"
    assert f"id: {request}:" in http.get(again).text


@pytest.mark.parametrize("path", BODIES)
def test_usage_in_every_chunk(http: httpx.Client, path: str) -> None:
    """vLLM's `continuous_usage_stats`, which guidellm sets."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = BODIES[path] | {"stream": True, "stream_options": options, "return_token_ids": True}
    text = http.post(path, json=asked).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    tokens = 0
    for chunk in chunks[:-1]:
        tokens += len(chunk["choices"][0].get("token_ids", ()))
        assert chunk["usage"]["completion_tokens"] == tokens
        assert chunk["usage"]["total_tokens"] == tokens + chunk["usage"]["prompt_tokens"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == tokens == 12


@pytest.mark.parametrize("path", BODIES)
def test_continuous_usage_alone_has_no_effect(http: httpx.Client, path: str) -> None:
    """As in vLLM, it is an option of `include_usage`."""
    asked = BODIES[path] | {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    assert '"usage"' not in http.post(path, json=asked).text
