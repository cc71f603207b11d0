"""Parsing of streamed answers, without a server."""

from __future__ import annotations

import json

import pytest

from services.client.sse import Call, Event, Events, StreamedAnswer, StreamError, position
from tests.services.client.streams import chunk as stream_chunk
from tests.services.client.streams import chunks_of, events

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


def chat(text: str | None, reason: str | None = None, index: int = 0) -> dict:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def completion(text: str, reason: str | None = None) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def event(chunk: dict | str, id: str = "") -> Event:
    return Event(chunk if isinstance(chunk, str) else json.dumps(chunk), id)


def read(*chunks: dict | str) -> StreamedAnswer:
    answer = StreamedAnswer()
    for chunk in chunks:
        answer.feed(event(chunk))
    answer.check()
    return answer


def test_events_are_the_data_of_whole_blocks() -> None:
    events = Events()
    lines = [b": keep-alive\n", b"\n", b"id: 7\r\n", b"data: one\r\n", b"\r\n", b"data:two\n", b"data: three\n", b"\n"]
    assert [events.feed(line) for line in lines] == [
        *(None, None, None, None, Event("one", "7"), None, None, Event("two\nthree"))
    ]


def test_a_cut_event_is_never_given_out() -> None:
    assert Events().feed(b'data: {"choices": [') is None


def test_whole_chat() -> None:
    answer = read(chat(""), chat("Par"), chat("is"), chat(None, "stop"), USAGE, "[DONE]")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Paris", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 3)


def test_whole_completion_with_the_reason_beside_the_last_text() -> None:
    assert read(completion("a"), completion("b", "length"), USAGE, "[DONE]").choices[0].text == "ab"


def test_only_text_counts_as_first_token() -> None:
    answer = StreamedAnswer()
    chunks = [chat(""), chat(None), chat("x"), chat(None, "stop"), USAGE]
    assert [answer.feed(event(c)) for c in chunks] == [False, False, True, False, False]


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
def test_answers_that_are_not_whole(chunks: list, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        read(*chunks)


TWO = chunks_of("r", [[5, 6, 7], [8]])


def follow(answer: StreamedAnswer, *parts: list[Event]) -> StreamedAnswer:
    for part in parts:
        for one in part:
            answer.feed(one)
    return answer


def test_tokens_that_were_not_asked_for_are_null() -> None:
    """As in an answer that is not a stream, which load tests read as one event."""
    whole = completion("a", "length")
    whole["choices"][0]["token_ids"] = None
    answer = StreamedAnswer()
    answer.feed(Event(json.dumps(whole)))
    assert (answer.choices[0].text, answer.choices[0].token_ids) == ("a", [])


def test_tokens_of_each_choice_over_two_connections() -> None:
    first = events(TWO)[:4]
    answer = follow(StreamedAnswer(), first)
    assert answer.last_id == "r:2.1"
    follow(answer, events(chunks_of("r", [[5, 6, 7], [8]], start=[2, 1])))
    assert [answer.choices[i].token_ids for i in (0, 1)] == [[5, 6, 7], [8]]
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.request) == ("5 6 7 ", "length", "r")
    answer.check(usage=False)


@pytest.mark.parametrize(
    "wrong",
    [
        events(chunks_of("r", [[5, 6, 7], [8]], start=[1, 1])),  # repeats token 1
        events(chunks_of("r", [[5, 6, 7], [8]], start=[2, 2])),  # omits the end of the other choice
        events(chunks_of("s", [[5, 6, 7], [8]], start=[2, 1])),  # another request
        [Event("{}", "r")],
        [Event("{}", "r:2.x")],
    ],
)
def test_a_stream_that_does_not_continue_where_it_stopped(wrong: list[Event]) -> None:
    answer = follow(StreamedAnswer(), events(TWO)[:4])
    with pytest.raises(StreamError, match=r"was due|an event's id is not"):
        follow(answer, wrong)


def test_opening_events_count_the_choices_opened_so_far_and_usage_counts_too() -> None:
    answer = follow(StreamedAnswer(), [event(stream_chunk(0, "", []), "r:0"), event(stream_chunk(1, "", []), "r:0.0")])
    follow(answer, events(TWO)[1:-1], [event(USAGE, "r:4.3"), Event("[DONE]")])
    answer.check()
    with pytest.raises(StreamError, match="was due"):
        follow(StreamedAnswer(), events(TWO)[:-1], [event(USAGE, "r:4.2")])


def test_an_id_that_does_not_count_its_choice() -> None:
    with pytest.raises(StreamError, match="does not count choice 1"):
        StreamedAnswer().feed(event(stream_chunk(1, "x", [1]), "r:1"))


def test_an_id_that_does_not_fit_the_tokens_beside_it() -> None:
    with pytest.raises(StreamError, match="was due"):
        StreamedAnswer().feed(event(stream_chunk(0, "x", [1, 2]), "r:1"))


def test_a_choice_that_ends_twice() -> None:
    with pytest.raises(StreamError, match="ended twice"):
        follow(StreamedAnswer(), [event(chat("x", "stop")), event(chat("y", "stop"))])


def test_a_request_that_was_forgotten_comes_again_from_its_first_token() -> None:
    answer = follow(StreamedAnswer(), events(TWO)[:4])
    answer.restart()
    follow(answer, events(chunks_of("s", [[5, 6, 7], [8]])))
    assert (answer.request, answer.choices[0].token_ids) == ("s", [5, 6, 7])
    other = follow(StreamedAnswer(), events(TWO)[:4])
    other.restart()
    with pytest.raises(StreamError, match="began otherwise"):
        follow(other, events(chunks_of("s", [[5, 9, 7], [8]])))


def test_log_probabilities_of_both_formats() -> None:
    chat_chunk, completion_chunk = chat("x"), completion("x")
    chat_chunk["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.5}]}
    completion_chunk["choices"][0]["logprobs"] = {"token_logprobs": [-0.25, -1.0], "tokens": ["x", "y"]}
    for chunk, logprobs in ((chat_chunk, [-0.5]), (completion_chunk, [-0.25, -1.0])):
        answer = StreamedAnswer()
        answer.feed(event(chunk))
        assert answer.choices[0].logprobs == logprobs


def calls(*pieces: dict) -> dict:
    return {"choices": [{"index": 0, "delta": {"tool_calls": list(pieces)}, "finish_reason": None}]}


def first(index: int, name: str) -> dict:
    return {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}


def piece(index: int, arguments: str) -> dict:
    return {"index": index, "function": {"arguments": arguments}}


def test_pieces_of_calls_are_joined() -> None:
    chunks = [calls(first(0, "add")), calls(piece(0, '{"a"')), calls(piece(0, ": 1}"), first(1, "end"), piece(1, "{}"))]
    answer = read(*chunks, chat(None, "tool_calls"), USAGE, "[DONE]")
    assert answer.choices[0].calls == [Call("call_0", "add", '{"a": 1}'), Call("call_1", "end", "{}")]


def test_a_piece_of_a_call_that_is_not_the_last_one() -> None:
    with pytest.raises(StreamError, match="a piece of call 0 came after 2 calls"):
        read(calls(first(0, "add"), first(1, "end")), calls(piece(0, "{}")))


def test_the_parts_of_an_id() -> None:
    assert position("cmpl-1:3.0") == ("cmpl-1", [3, 0])
