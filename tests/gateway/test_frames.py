"""The text of a stream, and the ids of its events, are functions of the tokens: not of how they came together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Answer
from gateway.errors import ApiError
from gateway.model import ServedModel
from gateway.plan import AnswerKind, Plan
from gateway.sse import SseWriter
from services.messages import End, Logprobs, TokenEvent
from services.models import ModelInfo
from services.requests import FinishReason
from services.text import StopMatcher, Tokenizer

STOPS = ("ab", "bcd", "🐳")
LENGTHS: dict[str, Any] = {"prompt_tokens": 2, "max_new_tokens": 99, "stop": STOPS, "prompts": [[1, 2]]}
PIECES = ["a", "b", "c", "d", " the", "né", "🐳", "漢", "hello world"]


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> ServedModel:
    return ServedModel("tiny", Tokenizer.load(tiny_folder), ModelInfo.load(tiny_folder), 1)


def answer(model: ServedModel, choices: int = 1, said: Sequence[int] = (), **fields: Any) -> Answer:
    plan = Plan(**{"kind": AnswerKind.CHAT, "created": 1, "digest": "", "choices": choices} | LENGTHS | fields)
    return Answer(plan, model, "r", said)


def events_of(model: ServedModel, choice: int, tokens: list[int], logprobs: bool = False) -> list[TokenEvent]:
    """As a scheduler would commit them, up to the end it finds."""
    matcher = StopMatcher(model.tokenizer.tables, STOPS)
    events = []
    for index, token in enumerate(tokens):
        found = Logprobs(-1.0, [(token, -1.0)]) if logprobs else None
        events.append(TokenEvent(f"r/{choice}", index, token, found))
        if match := matcher.push(token):
            end = End(FinishReason.STOP, match.stop, match.cut)
            return [*events, TokenEvent(f"r/{choice}", index + 1, None, end=end)]
    return [*events, TokenEvent(f"r/{choice}", len(tokens), None, end=End(FinishReason.LENGTH))]


def read(frames: bytes) -> tuple[list[str], list[Any]]:
    assert frames.endswith(b"\n\ndata: [DONE]\n\n")
    split = [event.split("\ndata: ") for event in frames.decode().split("\n\n")[:-2]]
    return [id.removeprefix("id: ") for id, _ in split], [json.loads(data) for _, data in split]


def said(chunks: list[Any], choice: int = 0) -> str:
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(delta["content"] for delta in deltas)


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8), data=st.data())
def test_any_grouping_says_the_same(model: ServedModel, pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    events = events_of(model, 0, model.tokenizer.encode(text))
    at_once = SseWriter(answer(model)).write(events)
    grouped, writer = b"", SseWriter(answer(model))
    while events:
        size = data.draw(st.integers(1, len(events)))
        grouped, events = grouped + writer.write(events[:size]), events[size:]
    assert writer.done
    (ids, chunks), (ids_at_once, chunks_at_once) = read(grouped), read(at_once)
    ends = [text.find(stop) for stop in STOPS if stop in text]
    assert said(chunks) == said(chunks_at_once)
    assert said(chunks) == text or any(said(chunks) == text[:end] for end in ends)
    assert not any(stop in said(chunks) for stop in STOPS)
    assert ids[-1] == ids_at_once[-1]
    assert chunks[-1]["choices"][0]["finish_reason"] == ("stop" if ends else "length")


@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_an_id_says_where_to_go_on(model: ServedModel, pieces: list[str]) -> None:
    """What the tokens counted in an event's id say is exactly what was said up to it."""
    events = events_of(model, 0, model.tokenizer.encode("".join(pieces)))
    writer, frames = SseWriter(answer(model)), b""
    for event in events:
        frames += writer.write([event])
    ids, chunks = read(frames)
    for place, id in enumerate(ids):
        count = int(id.partition(":")[2])
        replayed = answer(model)
        replayed.add(events[:count])
        piece = replayed.choices[0].take()
        assert said(chunks[: place + 1]) == (piece.text if piece else "")


def test_ids_count_what_each_choice_has_said(model: ServedModel) -> None:
    a, b = events_of(model, 0, model.tokenizer.encode("ax")), events_of(model, 1, model.tokenizer.encode("y"))
    writer = SseWriter(answer(model, choices=2))
    first = writer.write([a[0], b[0]])
    ids = [line.removeprefix(b"id: r:") for line in first.split(b"\n") if line.startswith(b"id: ")]
    # two roles; "a" may begin the stop string "ab", so choice 1 speaks first and choice 0 has said nothing yet
    assert ids == [b"0", b"0.0", b"0.1"]
    last = writer.write([b[1], a[1], a[2]])
    ids = [line.removeprefix(b"id: r:") for line in last.split(b"\n") if line.startswith(b"id: ")]
    assert ids == [b"0.2", b"3.2"]


def test_held_text_makes_no_frame_but_its_tokens_do_when_asked_for(model: ServedModel) -> None:
    (first, *_) = events_of(model, 0, model.tokenizer.encode("ax"))
    silent = SseWriter(answer(model, kind=AnswerKind.COMPLETION))
    assert silent.write([first]) == b""
    with_ids = SseWriter(answer(model, kind=AnswerKind.COMPLETION, return_token_ids=True))
    assert b'"token_ids":[%d]' % (first.token or 0) in with_ids.write([first])


def test_log_probabilities_of_held_tokens_come_with_their_text(model: ServedModel) -> None:
    tokens = model.tokenizer.encode("ax")
    writer, frames = SseWriter(answer(model, with_logprobs=True)), b""
    for event in events_of(model, 0, tokens, logprobs=True):
        frames += writer.write([event])
    contents = [chunk["choices"][0]["logprobs"]["content"] for chunk in read(frames)[1][1:]]
    assert [[entry["token"] for entry in content] for content in contents] == [["a", "x"], []]


@pytest.mark.parametrize(
    ("reason", "code"), [(FinishReason.ERROR, "generation_failed"), (FinishReason.CANCELLED, "request_cancelled")]
)
def test_an_end_without_an_answer_is_an_error(model: ServedModel, reason: FinishReason, code: str) -> None:
    writer = SseWriter(answer(model))
    with pytest.raises(ApiError) as error:
        writer.write([TokenEvent("r/0", 0, None, end=End(reason, error="boom"))])
    assert error.value.body()["error"]["code"] == code
