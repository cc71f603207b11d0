"""What an answer says about its end: `stop_reason`, and the end token among tokens and log probabilities."""

from __future__ import annotations

from typing import Any

import httpx
import openai
from echo_engine import WRITE
from sse_client import DONE, read
from stack import NAME


def test_an_empty_completion_has_no_stop(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 0, "stop": "hello"}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    *_, last, done = read(http.post("/v1/completions", json=body | {"stream": True}))
    assert done == DONE
    for choice in (whole, last.json()["choices"][0]):
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
