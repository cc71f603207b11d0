"""Tokens that the model has no logits for are a 400 that names the field and the id, wherever they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from stack import Stack
from tiny_text import make_folder

from services.settings.settings import Settings

BEYOND = "<system>"  # the last token of the tokenizer, which the model does not have
USER = {"role": "user", "content": f"hello {BEYOND}"}  # whose text is plain
SAY = [{"role": "system", "content": f"hello {BEYOND}"}, USER]
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
    RESPONSES: {"input": "hello"},
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
}
SPELLED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": SAY}, "messages"),
    (COMPLETIONS, {"prompt": f"hello {BEYOND}"}, "prompt"),
    (COMPLETIONS, {"prompt": ["hello", f"{BEYOND} hello"]}, "prompt"),
    (RESPONSES, {"input": SAY}, "input"),
    (RESPONSES, {"instructions": BEYOND}, "input"),
    (MESSAGES, {"system": BEYOND}, "messages"),
]


@pytest.fixture(scope="module")
def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = make_folder(tmp_path_factory.mktemp("narrow"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] - 1}))
    with Stack(redis_url, "narrow", folder, Settings(override_generation_config={"max_new_tokens": 5})) as stack:
        yield stack


def refused(stack: Stack, http: httpx.Client, path: str, body: dict[str, Any], param: str, id: int) -> None:
    for stream in (False, True) if path.startswith("/v1") else (None,):
        answer = http.post(path, json=body if stream is None else body | {"stream": stream})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        size = stack.info.vocab_size
        assert error["message"] == f"Invalid '{param}': token id {id} is not in the vocabulary of {size} tokens."
        assert error.get("param", param) == param


@pytest.mark.parametrize(("path", "fields", "param"), SPELLED)
def test_in_the_text_of_a_prompt(
    stack: Stack, http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    refused(stack, http, path, BODIES[path] | fields, param, stack.info.vocab_size)


@pytest.mark.parametrize("more", [0, 1, 10**6])
@pytest.mark.parametrize("path", BODIES)
def test_in_fields_of_ids(stack: Stack, http: httpx.Client, path: str, more: int) -> None:
    id = stack.info.vocab_size + more
    given: dict[str, Any] = {
        "logit_bias": {"5": 1, str(id): 1},
        "stop_token_ids": [5, id],
        "allowed_token_ids": [5, id],
    }
    if path == COMPLETIONS:
        given |= {"prompt": [5, id]}
        refused(stack, http, path, {"prompt": [[5], [6, id]]}, "prompt", id)
    for name, value in given.items():
        refused(stack, http, path, BODIES[path] | {name: value}, name, id)
        below = json.loads(json.dumps(value).replace(str(id), str(stack.info.vocab_size - 1)))
        assert http.post(path, json=BODIES[path] | {name: below, "n": 1}).status_code == 200
    refused(stack, http, "/detokenize", {"tokens": [5, id]}, "tokens", id)


@pytest.mark.parametrize("path", BODIES)
def test_in_bad_words(stack: Stack, http: httpx.Client, path: str) -> None:
    refused(stack, http, path, BODIES[path] | {"bad_words": ["the", BEYOND]}, "bad_words", stack.info.vocab_size)


@pytest.mark.parametrize("id", [-1, -(10**6)])
@pytest.mark.parametrize("path", BODIES)
def test_ids_below_zero(http: httpx.Client, path: str, id: int) -> None:
    given: dict[str, Any] = {"logit_bias": {str(id): 1}, "stop_token_ids": [id], "allowed_token_ids": [id]}
    given |= {"prompt": [id]} if path == COMPLETIONS else {}
    for name, value in given.items():
        answer = http.post(path, json=BODIES[path] | {name: value})
        assert answer.status_code == 400, answer.text
        assert name in answer.json()["error"]["message"]
    assert http.post("/detokenize", json={"tokens": [id]}).status_code == 400


def test_the_tokenizer_s_own_routes(stack: Stack, http: httpx.Client) -> None:
    """They say what the tokenizer makes of a text, and read what the model has."""
    tokens = http.post("/tokenize", json={"prompt": f"a{BEYOND}"}).json()["tokens"]
    assert tokens[-1] == stack.info.vocab_size
    last = stack.info.vocab_size - 1
    assert http.post("/detokenize", json={"tokens": [last]}).json()["prompt"] == stack.tokenizer.decode([last], False)
