"""Streams that are damaged, as a broken server or proxy may send them: the reader says so, or reads an answer."""

from __future__ import annotations

import contextlib

import orjson
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from services.client.sse import Events, StreamedAnswer, StreamError

CHUNKS = [
    {"id": "c", "choices": [{"index": 0, "text": "he", "token_ids": [1], "finish_reason": None}]},
    {"id": "c", "choices": [{"index": 0, "text": "llo", "token_ids": [2], "finish_reason": "length"}]},
    {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]
CHAT = [
    {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": {"content": [{"logprob": -1.0}]}}]}
]
STREAM = (
    b"".join(b"id: r:%d\ndata: %s\n\n" % (i + 1, orjson.dumps(c)) for i, c in enumerate(CHUNKS)) + b"data: [DONE]\n\n"
)
CHAT_STREAM = b"".join(b"data: %s\n\n" % orjson.dumps(chunk) for chunk in CHAT) + b"data: [DONE]\n\n"


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from([STREAM, CHAT_STREAM])))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 12, len(data))))
        data[start:end] = draw(
            st.binary(max_size=6)
            | st.sampled_from(
                [b"", b"\n", b"\r\n", b":", b"null", b"[]", b"{}", b'"x"', b"-1", b"1e99", b"data: ", b"\xff"]
            )
        )
    return bytes(data)


@effort(500)
@given(damaged())
def test_a_damaged_stream_is_an_error_or_an_answer(stream: bytes) -> None:
    answer, events = StreamedAnswer(), Events()
    with contextlib.suppress(StreamError):
        for line in stream.splitlines(keepends=True):
            if event := events.feed(line):
                answer.feed(event)
        answer.check()
