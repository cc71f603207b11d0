"""What an answer says about its end: `stop_reason`, and the end token among tokens and log probabilities."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import openai_document
import pytest
from echo_engine import WRITE
from sse_client import DONE, read
from stack import NAME, Stack

PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": f"{WRITE}hello world"}]},
    "/v1/completions": {"prompt": f"{WRITE}hello world"},
}


def choices_of(http: httpx.Client, path: str, **fields: Any) -> list[Any]:
    """The choice of the whole answer, and the last chunk of the choice of a stream."""
    body = PATHS[path] | {"max_tokens": 20} | fields
    whole = http.post(path, json=body).json()
    schema = "CreateChatCompletionResponse" if "messages" in body else "CreateCompletionResponse"
    openai_document.check(schema, whole)
    *chunks, done = read(http.post(path, json=body | {"stream": True}))
    assert done == DONE
    said = [chunk.json()["choices"][0] for chunk in chunks]
    assert all("stop_reason" not in choice for choice in said[:-1])
    return [whole["choices"][0], said[-1]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "finish", "stop"),
    [
        ({}, "stop", None),
        ({"stop": ["!", "wor"]}, "stop", "wor"),
        ({"stop": "wor", "include_stop_str_in_output": True}, "stop", "wor"),
        ({"stop_token_ids": [" world"]}, "stop", " world"),
        ({"stop_token_ids": ["<eos>"]}, "stop", None),  # also without it
        ({"stop_token_ids": ["<eos>"], "ignore_eos": True}, "stop", "<eos>"),
        ({"max_tokens": 1}, "length", None),
    ],
)
def test_the_stop_that_ended_a_choice(
    stack: Stack, http: httpx.Client, path: str, fields: dict[str, Any], finish: str, stop: str | None
) -> None:
    """As in vLLM: the stop string, or the id of the stop token; null for the end token and limits."""
    want: str | int | None = stop
    if "stop_token_ids" in fields:
        ids = stack.tokenizer.encode(fields["stop_token_ids"][0])
        fields, want = fields | {"stop_token_ids": ids}, ids[0] if stop else None
    for choice in choices_of(http, path, **fields):
        assert (choice["finish_reason"], choice["stop_reason"]) == (finish, want)


def test_an_empty_completion_has_no_stop(http: httpx.Client) -> None:
    for choice in choices_of(http, "/v1/completions", max_tokens=0, stop="hello"):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


def test_choices_of_one_request_have_their_own_stops(http: httpx.Client) -> None:
    body = {"prompt": [f"{WRITE}hello world", f"{WRITE}hello né"], "stop": ["n", "w"], "max_tokens": 20}
    assert [choice["stop_reason"] for choice in http.post("/v1/completions", json=body).json()["choices"]] == ["w", "n"]


def test_the_end_token_has_a_log_probability(client: openai.OpenAI) -> None:
    """As in vLLM, each token that is counted has one, in all APIs; the end token has no text in the answer."""
    said: Any = [{"role": "user", "content": f"{WRITE}hello world"}]
    chat = client.chat.completions.create(model=NAME, messages=said, logprobs=True)
    told = chat.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert chat.choices[0].message.content == "hello world"
    of_chat = [entry.token for entry in told.content]
    completion = client.completions.create(model=NAME, prompt=f"{WRITE}hello world", logprobs=0)
    of_completion = completion.choices[0].logprobs
    assert of_completion is not None
    include: Any = ["message.output_text.logprobs"]
    response = client.responses.create(model=NAME, input=f"{WRITE}hello world", include=include)
    part: Any = response.output[0].content[0]  # type: ignore[union-attr, index]
    assert of_chat == of_completion.tokens == [entry.token for entry in part.logprobs] == ["hello", " world", "<eos>"]
    counts = [chat.usage.completion_tokens, completion.usage.completion_tokens, response.usage.output_tokens]  # type: ignore[union-attr]
    assert counts == [3, 3, 3]
