"""Parsing of streamed answers, without a server."""

from __future__ import annotations

import json

import pytest

from load.sse import Answer, Events, StreamError

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


def chat(text: str | None, reason: str | None = None, index: int = 0) -> dict:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def completion(text: str, reason: str | None = None) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def read(*chunks: dict | str) -> Answer:
    answer = Answer()
    for chunk in chunks:
        answer.feed(chunk if isinstance(chunk, str) else json.dumps(chunk))
    answer.check()
    return answer


def test_events_are_the_data_of_whole_blocks() -> None:
    events = Events()
    lines = [b": keep-alive\n", b"\n", b"id: 7\r\n", b"data: one\r\n", b"\r\n", b"data:two\n", b"data: three\n", b"\n"]
    assert [events.feed(line) for line in lines] == [None, None, None, None, "one", None, None, "two\nthree"]


def test_a_cut_event_is_never_given_out() -> None:
    assert Events().feed(b'data: {"choices": [') is None


def test_whole_chat() -> None:
    answer = read(chat(""), chat("Par"), chat("is"), chat(None, "stop"), USAGE, "[DONE]")
    assert (answer.text, answer.finish_reasons) == ({0: "Paris"}, {0: "stop"})
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 3)


def test_whole_completion_with_the_reason_beside_the_last_text() -> None:
    assert read(completion("a"), completion("b", "length"), USAGE, "[DONE]").text == {0: "ab"}


def test_only_text_counts_as_first_token() -> None:
    answer = Answer()
    chunks = [chat(""), chat(None), chat("x"), chat(None, "stop"), USAGE]
    assert [answer.feed(json.dumps(c)) for c in chunks] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([chat("x", "stop"), USAGE], r"without \[DONE\]"),
        ([chat("x"), {"error": {"message": "engine lost", "code": 500}}], "error frame: engine lost"),
        ([chat("x"), USAGE, "[DONE]"], r"no finish_reason for choices \[0\]"),
        ([chat("x", "stop"), chat("y", index=1), USAGE, "[DONE]"], r"no finish_reason for choices \[1\]"),
        ([chat("x", "stop"), "[DONE]"], "no usage chunk"),
        (["[DONE]"], "no choice"),
        ([chat("x", "stop"), USAGE, "[DONE]", chat("y")], r"after \[DONE\]"),
        (["{"], "not JSON"),
        (["[1]"], "not a chunk"),
    ],
)
def test_what_is_no_whole_answer(chunks: list, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        read(*chunks)
