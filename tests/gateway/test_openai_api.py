"""Answers agree with the official client and with OpenAI's own document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import openai_document
import pytest
from frames import read
from stack import NAME, Stack

from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from services.settings.settings import Settings

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


def frames(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """The ids and data of a stream that ends with [DONE]."""
    response = http.post(path, json={"stream": True} | body, headers={"Orca-Resumable": "true"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    return read(response.content)


# --- the official client -------------------------------------------------------------------------------------


def test_a_model_of_several_names(redis_url: str, tiny_folder: Path) -> None:
    """As in vLLM: each is accepted and listed, and answers have the first."""
    settings = Settings(served_model_name=("first", "second/name"))
    with (
        Stack(redis_url, "named", tiny_folder, settings) as named,
        openai.OpenAI(base_url=named.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        assert [m.id for m in client.models.list()] == ["first", "second/name"]
        for name in ("first", "second/name"):
            assert client.models.retrieve(name).id == name
            assert client.completions.create(model=name, prompt="hello", max_tokens=2).model == "first"
            answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "a"}])
            assert answer.model == "first"
            assert client.responses.create(model=name, input="a", max_output_tokens=16).model == "first"
        with pytest.raises(openai.NotFoundError, match="serves 'first' or 'second/name'"):
            client.completions.create(model=NAME, prompt="hello")


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).object == "model"
    with pytest.raises(openai.NotFoundError, match="gpt-17"):
        client.models.retrieve("gpt-17")


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="hello world", max_tokens=3)
    assert answer.choices[0].text == "hello worldhello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.id.startswith("cmpl-")
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_completion_has_sixteen_tokens_by_default(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="a")
    assert answer.choices[0].text == "a" * 16


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=NAME, messages=MESSAGES)
    assert answer.choices[0].message.content == "hi"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")


def test_chat_accepts_text_parts_and_all_roles(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    messages: list[Any] = [{"role": "developer", "content": "a"}, {"role": "user", "content": parts, "name": "me"}]
    answer = client.chat.completions.create(
        model=NAME, messages=messages, max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].message.content == "a"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(["<system>", "a", "<eos>", "<user>", "b", "c", "<eos>", "<assistant>"])


def test_chat_default_is_what_fits(client: openai.OpenAI) -> None:
    ask = {"model": NAME, "extra_body": {"ignore_eos": True}}
    short = client.chat.completions.create(messages=MESSAGES, **ask)
    assert short.usage is not None
    assert short.usage.completion_tokens == 40  # the stack's setting
    long = client.chat.completions.create(messages=[{"role": "user", "content": "a" * 377}], **ask)
    assert long.usage is not None
    assert long.usage.total_tokens == 400  # all KV slots
    with pytest.raises(openai.BadRequestError, match="KV slots for 400 tokens"):
        client.chat.completions.create(messages=[{"role": "user", "content": "a" * 397}], **ask)


def test_chat_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "hi"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 5 + 4
    assert all(c.usage is None for c in chunks[:-1])


def test_errors_in_the_official_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=NAME, prompt="hi", temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-17", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError, match="the prompt said so"):
        client.completions.create(model=NAME, prompt="FAIL")


# --- several choices -----------------------------------------------------------------------------------------


def test_prompts_times_n(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt=["a", "b"], n=2, max_tokens=2)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "aa"), (1, "aa"), (2, "bb"), (3, "bb")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2
    assert answer.usage.completion_tokens == 8


def test_prompts_of_ids(client: openai.OpenAI, stack: Stack) -> None:
    a, b = stack.tokenizer.encode("ab")
    assert client.completions.create(model=NAME, prompt=[a, b], max_tokens=3).choices[0].text == "aba"
    answer = client.completions.create(model=NAME, prompt=[[a], [b]], max_tokens=2)
    assert [c.text for c in answer.choices] == ["aa", "bb"]


def test_several_choices_stream_side_by_side(http: httpx.Client) -> None:
    ids, chunks = frames(http, "/v1/completions", {"prompt": ["ab", "cd"], "max_tokens": 5})
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "ababa", 1: "cdcdc"}
    assert {c["id"] for c in chunks} == {ids[0].partition(":")[0]}
    assert ids[-1].partition(":")[2] == "6.6"


# --- text ----------------------------------------------------------------------------------------------------


def test_a_stop_token(http: httpx.Client, stack: Stack) -> None:
    (c,) = stack.tokenizer.encode("c")
    body = {"prompt": "abcd", "stop_token_ids": [c], "max_tokens": 30, "return_token_ids": True}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == "ab"
    assert choice["token_ids"] == stack.tokenizer.encode("abc")


def test_token_ids(http: httpx.Client, stack: Stack) -> None:
    prompt = stack.tokenizer.encode("hello né")
    body = {"prompt": "hello né", "max_tokens": 6, "return_token_ids": True}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["prompt_token_ids"] == prompt
    assert choice["token_ids"] == (prompt * 2)[:6]
    _, chunks = frames(http, "/v1/completions", body)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == prompt
    assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == (prompt * 2)[:6]
    chat = {"messages": MESSAGES, "return_token_ids": True}
    whole = http.post("/v1/chat/completions", json=chat).json()
    _, chunks = frames(http, "/v1/chat/completions", chat)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == whole["choices"][0]["token_ids"]


# --- OpenAI's document ---------------------------------------------------------------------------------------


def test_every_field_of_the_document_is_known() -> None:
    assert openai_document.fields("CreateCompletionRequest") <= set(CompletionRequest.model_fields)
    assert openai_document.fields("CreateChatCompletionRequest") <= set(ChatRequest.model_fields)


@pytest.mark.parametrize("logprobs", [False, True])
def test_answers_are_as_the_document_says(http: httpx.Client, logprobs: bool) -> None:
    completion = {"prompt": ["hello né", "b"], "n": 2, "max_tokens": 9, "logprobs": 2 if logprobs else None}
    openai_document.check("CreateCompletionResponse", http.post("/v1/completions", json=completion).json())
    chat: dict[str, Any] = {"messages": MESSAGES, "n": 2, "logprobs": logprobs, "service_tier": "fast"}
    if logprobs:
        chat["top_logprobs"] = 5
    openai_document.check("CreateChatCompletionResponse", http.post("/v1/chat/completions", json=chat).json())
    usage = {"stream_options": {"include_usage": True}}
    for chunk in frames(http, "/v1/chat/completions", chat | usage)[1]:
        openai_document.check("CreateChatCompletionStreamResponse", chunk)


def test_other_answers_match_the_document(http: httpx.Client) -> None:
    openai_document.check("ListModelsResponse", http.get("/v1/models").json())
    openai_document.check("Model", http.get(f"/v1/models/{NAME}").json())
    openai_document.check("ErrorResponse", http.get("/v1/models/gpt-17").json())
    openai_document.check("ErrorResponse", http.post("/v1/completions", content=b"{").json())


DESCRIPTIVE = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "x"},
}
NEUTRAL_CHAT = {
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "reasoning_effort": "none",
    "verbosity": "medium",
    "max_completion_tokens": 2,
    "max_tokens": 2,
    "add_special_tokens": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template_kwargs": {},
}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": -1,
    "min_p": 0.1,
    "seed": -(2**63),
    "presence_penalty": 1,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": -100},
    "min_tokens": 1,
    "ignore_eos": True,
    "stop": None,
    "stop_token_ids": None,
    "bad_words": [],
    "allowed_token_ids": None,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
}


def test_fields_that_do_not_change_tokens_are_accepted(http: httpx.Client) -> None:
    body = {"prompt": "hi", "max_tokens": 2, "echo": False, "suffix": None, "best_of": 1, **DESCRIPTIVE, **SAMPLING}
    assert http.post("/v1/completions", json=body).status_code == 200
    body = {"messages": MESSAGES, **NEUTRAL_CHAT, **DESCRIPTIVE, **SAMPLING}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
