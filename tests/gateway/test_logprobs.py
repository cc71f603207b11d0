"""Log probabilities of answers in OpenAI's two formats."""

from __future__ import annotations

from typing import Any

import httpx

BODY = {"prompt": "aé", "max_tokens": 6}


def completion(http: httpx.Client, logprobs: int) -> tuple[str, Any]:
    choice = http.post("/v1/completions", json=BODY | {"logprobs": logprobs}).json()["choices"][0]
    return choice["text"], choice["logprobs"]


def test_completions(http: httpx.Client) -> None:
    text, logprobs = completion(http, 5)
    assert text == "aéaé"
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"] * 2
    assert logprobs["token_logprobs"] == [-0.5] * 6
    # the engine's fifth token has minus infinity, which JSON cannot represent
    assert [sorted(top.values()) for top in logprobs["top_logprobs"]] == [[-9999.0, -3.5, -2.5, -1.5, -0.5]] * 6
    # characters that begin before the token
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 4]


def test_zero_is_the_sampled_token_alone(http: httpx.Client) -> None:
    _, logprobs = completion(http, 0)
    assert logprobs["top_logprobs"][0] == {"a": -0.5}


def test_none_unless_asked(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json=BODY).json()["choices"][0]["logprobs"] is None


def test_chat(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "é"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    user, *content = choice["logprobs"]["content"]
    assert user["token"] == "<user>"  # a special token has a name but no text
    assert choice["message"]["content"] == "é"
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["top_logprobs"][0] == {"token": "�", "logprob": -0.5, "bytes": [0xC3]}
