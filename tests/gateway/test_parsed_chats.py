"""Chats whose text is divided by a parser: whole answers, chunks, and streams that are resumed at any event."""

from __future__ import annotations

import json
from typing import Any

import openai_document
import pytest
from frames import REQUEST, answer, read
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answer.choice import Choice
from gateway.answer.parsers.pieces import CALL, TEXT, Piece
from gateway.answer.parts import STRIDE, PartKind
from gateway.answer.transcript import Transcript
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from gateway.openai.events import DONE, ChunkWriter
from services.messages import End, Logprobs, TokenEvent
from services.requests import FinishReason

FIELDS: dict[str, Any] = {
    "tool_parser": "hermes",
    "reasoning_parser": "qwen3",
    "stop": (),
    "return_token_ids": True,
    "with_logprobs": True,
    "include_usage": True,
}
CALL_TEXT = '<tool_call>\n{"name": "the", "arguments": {"x": "hello world 🐳"}}\n</tool_call>'
PIECES = ["<think>\n", " the world\n", "</think>\n", "hello world", " 🐳", CALL_TEXT, "<tool_call>{", CALL_TEXT[:-40]]


def events(
    model: ServedModel, text: str, choice: int = 0, reason: FinishReason = FinishReason.STOP
) -> list[TokenEvent]:
    id, tokens = f"{REQUEST}/{choice}", model.tokenizer.encode(text)
    made = [TokenEvent(id, i, token, Logprobs(-1.0, [(token, -1.0)])) for i, token in enumerate(tokens)]
    return [*made, TokenEvent(id, len(made), None, end=End(reason))]


def joined(chunks: list[Any], choice: int = 0) -> dict[str, Any]:
    """What a client puts together of the deltas of a choice, as openai's client does."""
    made: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "tokens": [], "logprobs": [], "reasons": []}
    for chunk in chunks:
        for said in chunk["choices"]:
            if said["index"] != choice:
                continue
            delta = said["delta"]
            made["content"] += delta.get("content", "")
            made["reasoning"] += delta.get("reasoning_content", "")
            made["tokens"] += said.get("token_ids", [])
            made["logprobs"] += said["logprobs"]["content"] if said["logprobs"] else []
            made["reasons"] += [said["finish_reason"]] if said["finish_reason"] else []
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(made["calls"])
                    function = dict(call["function"])
                    made["calls"].append({"id": call["id"], "type": call["type"], "function": function})
                else:
                    made["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return made


def whole(made: Answer, all_events: list[TokenEvent]) -> dict[str, Any]:
    made.add(all_events)
    body: dict[str, Any] = json.loads(made.body())
    return body


def test_a_message_with_reasoning_and_calls(model: ServedModel) -> None:
    text = f"<think>\n the\n</think>\n\nhello\n{CALL_TEXT}\n{CALL_TEXT}"
    body = whole(answer(model, **FIELDS), events(model, text))
    openai_document.check("CreateChatCompletionResponse", body)
    said = body["choices"][0]
    message = said["message"]
    ids = [call.pop("id") for call in message["tool_calls"]]
    function = {"name": "the", "arguments": '{"x": "hello world 🐳"}'}
    assert message == {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "reasoning_content": "the",
        "reasoning": "the",
        "tool_calls": [{"type": "function", "function": function}] * 2,
    }
    assert said["finish_reason"] == "tool_calls"
    assert len({*ids}) == 2
    assert all(id.startswith("call_") for id in ids)
    reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning <= len(model.tokenizer.encode("<think>\n the\n"))


@pytest.mark.parametrize(
    ("text", "reason", "content", "finish"),
    [
        (CALL_TEXT, FinishReason.STOP, None, "tool_calls"),
        (CALL_TEXT[:-30], FinishReason.LENGTH, None, "length"),
        ("<think>the", FinishReason.LENGTH, None, "length"),
        ("hello", FinishReason.STOP, "hello", "stop"),
        (" ", FinishReason.STOP, " ", "stop"),
    ],
)
def test_content_and_finish_reason(
    model: ServedModel, text: str, reason: FinishReason, content: str | None, finish: str
) -> None:
    said = whole(answer(model, **FIELDS), events(model, text, reason=reason))["choices"][0]
    assert (said["message"]["content"], said["finish_reason"]) == (content, finish)


def test_without_reasoning(model: ServedModel) -> None:
    said = events(model, "<think>the</think>hello")
    message = whole(answer(model, **FIELDS, include_reasoning=False), said)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "hello", "refusal": None}


def test_chunks_are_openai_s(model: ServedModel) -> None:
    _, chunks = read(ChunkWriter(answer(model, **FIELDS), with_ids=True).write(events(model, CALL_TEXT + " hello")))
    openai_document.check("CreateChatCompletionStreamResponse", chunks[-3])
    openai_document.check("CreateChatCompletionStreamResponse", chunks[-2])
    assert chunks[-2]["choices"][0]["delta"].keys() == {"content", "tool_calls"}


@settings(max_examples=40)
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), min_size=1, max_size=2),
    open=st.booleans(),
    data=st.data(),
)
def test_a_stream_resumed_anywhere_has_the_same_deltas(
    model: ServedModel, texts: list[str], open: bool, data: st.DataObject
) -> None:
    fields = FIELDS | {"reasoning_open": open}
    all_events = [event for i, text in enumerate(texts) for event in events(model, text, i)]
    mixed = data.draw(st.permutations(range(len(texts))))
    all_events.sort(key=lambda event: (event.index, mixed[int(event.id[-1])]))

    def stream(said: tuple[int, ...] = ()) -> tuple[list[str], list[Any]]:
        writer = ChunkWriter(answer(model, len(texts), said, **fields), len(said), with_ids=True)
        frames, left = b"", all_events
        while left:
            size = data.draw(st.integers(1, len(left)))
            frames, left = frames + writer.write(left[:size]), left[size:]
        return read(frames) if frames != DONE else ([], [])

    ids, chunks = stream()
    assert len({*ids}) == len(ids)
    body = whole(answer(model, len(texts), **fields), all_events)
    for index in range(len(texts)):
        told, choice = joined(chunks, index), body["choices"][index]
        message = choice["message"]
        assert told["content"] == (message["content"] or "")
        assert told["reasoning"] == message.get("reasoning_content", "")
        assert told["calls"] == message.get("tool_calls", [])
        assert told["tokens"] == choice["token_ids"]
        assert told["reasons"] == [choice["finish_reason"]]
        assert told["logprobs"] == choice["logprobs"]["content"]
    cut = data.draw(st.integers(0, len(ids) - 1))
    said = tuple(map(int, ids[cut].rpartition(":")[2].split(".")))
    more_ids, more = stream(said)
    assert len({*ids[: cut + 1], *more_ids}) == cut + 1 + len(more_ids)
    for index in range(len(texts)):
        assert joined([*chunks[: cut + 1], *more], index) == joined(chunks, index)


@settings(max_examples=30)
@given(text=st.lists(st.sampled_from(PIECES), max_size=5).map("".join), data=st.data())
def test_a_transcript_after_any_part(model: ServedModel, text: str, data: st.DataObject) -> None:
    all_events = events(model, text)

    def parts(after: int = -1) -> tuple[Transcript, list[Any]]:
        choice = answer(model, **FIELDS | {"with_logprobs": False}).choices[0]
        transcript, given, left = Transcript(choice, model.tokenizer, False, after), [], all_events
        while left:
            size = data.draw(st.integers(1, len(left)))
            transcript.add_all(left[:size])
            given += transcript.take()[0]
            left = left[size:]
        return transcript, given

    def text_of(given: list[Any]) -> list[tuple[PartKind, int, str | None, str]]:
        made: list[tuple[PartKind, int, str | None, str]] = []
        for part in given:
            if made and made[-1][:2] == (part.kind, part.call):
                made[-1] = (*made[-1][:3], made[-1][3] + part.text)
            else:
                made.append((part.kind, part.call, part.name, part.text))
        return made

    transcript, given = parts()
    numbers = [part.number for part in given]
    assert numbers == sorted({*numbers})
    assert text_of(given) == [(item.kind, item.call, item.name, item.text) for item in transcript.items]
    begins = [item.begin for item in transcript.items]
    for cut, part in enumerate(given):
        again, rest = parts(part.number)
        assert all(other.number > part.number for other in rest)
        assert text_of([*given[: cut + 1], *rest]) == text_of(given)
        assert [item.begin for item in again.items] == begins


class ManyPieces:
    """A parser that makes a piece of each character."""

    def push(self, text: str) -> list[Piece]:
        return [Piece(TEXT, c) if c.isspace() else Piece(CALL, c, place, "x") for place, c in enumerate(text)]

    def finish(self) -> list[Piece]:
        return []


def test_numbers_of_more_pieces_than_a_token_has_numbers(model: ServedModel) -> None:
    text = "a b" * STRIDE
    choice = Choice(0, model.tokenizer.tables, (text,), frozenset(), parser=ManyPieces())
    for event in events(model, text):
        choice.add(event)  # the whole text is held back, as it may be the stop string, and comes with the end
    delta = choice.take()
    assert delta is not None
    numbers = [part.number - STRIDE * choice.added for part in delta.parts]
    assert numbers == [min(place, STRIDE - 1) for place in range(3 * STRIDE)]
    assert "".join(part.text for part in delta.parts) == text
