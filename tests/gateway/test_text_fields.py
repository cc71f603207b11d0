"""Fields that determine the text of the same tokens: `include_stop_str_in_output`, `skip_special_tokens`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from frames import PIECES, STOPS, answer, events_of
from hypothesis import given
from hypothesis import strategies as st
from sse_client import completion_text

from gateway.model import ServedModel

INCLUDE, SHOW = {"include_stop_str_in_output": True}, {"skip_special_tokens": False}
COMPLETIONS = "/v1/completions"

# fields besides the prompt, which the engine repeats -> the text
PROMPT = "hi<user>ab."
CASES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 7}, "hiab.h"),
    ({"max_tokens": 7} | SHOW, "hi<user>ab.h"),
    ({"max_tokens": 7, "spaces_between_special_tokens": False} | SHOW, "hi<user>ab.h"),
    ({"stop": "ab"}, "hi"),
    ({"stop": "ab"} | INCLUDE, "hiab"),
    ({"stop": "ab"} | INCLUDE | SHOW, "hi<user>ab"),
    ({"stop": "r>a"}, "hiab.hiab.hia"),  # 16 tokens
    ({"stop": "r>a"} | SHOW, "hi<use"),
    ({"stop": "r>a"} | INCLUDE | SHOW, "hi<user>a"),
    ({"stop": ["<u", "zz"]} | INCLUDE | SHOW, "hi<u"),  # what follows it in the same token is removed
    ({"stop": "ab", "min_tokens": 8} | INCLUDE, "hiab.hiab"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "text"), CASES)
def test_the_text_of_the_answer(http: httpx.Client, fields: dict[str, Any], text: str, stream: bool) -> None:
    assert said(http, {"prompt": PROMPT} | fields, stream) == text


@pytest.mark.parametrize("stream", [False, True])
def test_stop_tokens(http: httpx.Client, eos: int, stream: bool) -> None:
    """The text of the stop token, or the name of a special token, is included only if both fields are set so."""
    word = http.post("/tokenize", json={"prompt": " world"}).json()["tokens"]
    body = {"prompt": "hello world", "stop_token_ids": word}
    assert said(http, body, stream) == "hello"
    assert said(http, body | INCLUDE, stream) == "hello world"
    for stops in ({}, {"stop_token_ids": [eos], "ignore_eos": True}):
        body = {"prompt": "hi<eos>no"} | stops
        assert said(http, body, stream) == said(http, body | INCLUDE, stream) == said(http, body | SHOW, stream) == "hi"
        assert said(http, body | INCLUDE | SHOW, stream) == "hi<eos>"
    assert said(http, {"prompt": "hi<eos>no", "ignore_eos": True, "max_tokens": 5} | SHOW, stream) == "hi<eos>no"


def test_chat_and_responses_have_the_fields(http: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]} | INCLUDE | SHOW
    answered = http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    assert answered == "<user>hi<eos>"
    response = http.post("/v1/responses", json={"input": "hi"} | INCLUDE | SHOW).json()
    assert response["output"][0]["content"][0]["text"] == "<user>hi<eos>"
    assert http.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]


def test_offsets_of_log_probabilities_are_those_of_the_text(http: httpx.Client) -> None:
    body = {"prompt": "a<user>b", "max_tokens": 3, "logprobs": 0}
    plain, shown = (
        http.post(COMPLETIONS, json=body | fields).json()["choices"][0]["logprobs"] for fields in ({}, SHOW)
    )
    assert plain["tokens"] == shown["tokens"] == ["a", "<user>", "b"]
    assert plain["text_offset"] == [0, 1, 1]
    assert shown["text_offset"] == [0, 1, 7]


@given(
    texts=st.lists(st.sampled_from([*PIECES, "<user>", "<eos>"]), min_size=1, max_size=8),
    include=st.booleans(),
    skip=st.booleans(),
    data=st.data(),
)
def test_any_grouping_gives_the_whole_text(
    model: ServedModel, texts: list[str], include: bool, skip: bool, data: st.DataObject
) -> None:
    """The text of the stop checking and the detokenizer equals the text of all tokens up to the first stop string."""
    fields = {"include_stop": include, "skip_special_tokens": skip}
    events = events_of(model, 0, model.tokenizer.encode("".join(texts)), **fields)
    choice = answer(model, **fields).choices[0]
    text = ""
    for event in events:
        choice.add(event)
        if data.draw(st.booleans()) and (piece := choice.take()):
            text += piece.text
            assert not piece.text or event.end or whole(model, events, include, skip).startswith(text)
    last = choice.take()
    assert text + (last.text if last else "") == whole(model, events, include, skip)


def whole(model: ServedModel, events: list[Any], include: bool, skip: bool) -> str:
    """By definition: the text up to the first stop, an EOS token or a stop string."""
    tokens = [event.token for event in events if event.token is not None]
    if tokens[-1] in model.info.eos_token_ids and not include:
        tokens.pop()
    text = model.tokenizer.decode(tokens, skip_special_tokens=skip)
    found = [(text.find(stop), stop) for stop in STOPS if stop in text]
    if not found:
        return text
    start, stop = min(found)
    return text[: start + len(stop)] if include else text[:start]


@pytest.fixture
def eos(model: ServedModel) -> int:
    (id,) = model.info.eos_token_ids
    return id


def said(http: httpx.Client, body: dict[str, Any], stream: bool) -> str:
    answered = http.post(COMPLETIONS, json=body | {"stream": stream})
    assert answered.status_code == 200, answered.text
    if not stream:
        return str(answered.json()["choices"][0]["text"])
    return completion_text(answered.text.splitlines())
