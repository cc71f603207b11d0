"""The text of a stream and the ids of its events are functions of the tokens, not of how they are grouped."""

from __future__ import annotations

import json

import openai_document
from frames import REQUEST, answer, events_of, read

from gateway.answer.plan import AnswerKind
from gateway.model import ServedModel
from gateway.openai.events import ChunkWriter
from services.messages import End, TokenEvent
from services.requests import FinishReason


def indices(frames: bytes) -> list[bytes]:
    return [line.rpartition(b":")[2] for line in frames.split(b"\n") if line.startswith(b"id: ")]


def test_ids_count_the_events_of_each_choice(model: ServedModel) -> None:
    a, b = events_of(model, 0, model.tokenizer.encode("ax")), events_of(model, 1, model.tokenizer.encode("y"))
    writer = ChunkWriter(answer(model, choices=2), with_ids=True)
    first = writer.write([a[0], b[0]])
    ids = indices(first)
    # two roles; "a" may begin the stop string "ab", so choice 1 has text first and choice 0 has none yet
    assert ids == [b"0", b"0.0", b"0.1"]
    last = writer.write([b[1], a[1], a[2]])
    ids = indices(last)
    assert ids == [b"0.2", b"3.2"]


def test_held_text_makes_no_frame_unless_token_ids_are_requested(model: ServedModel) -> None:
    (first, *_) = events_of(model, 0, model.tokenizer.encode("ax"))
    silent = ChunkWriter(answer(model, kind=AnswerKind.COMPLETION), with_ids=True)
    assert silent.write([first]) == b""
    with_ids = ChunkWriter(answer(model, kind=AnswerKind.COMPLETION, return_token_ids=True), with_ids=True)
    assert b'"token_ids":[%d]' % (first.token or 0) in with_ids.write([first])


def test_log_probabilities_of_held_tokens_come_with_their_text(model: ServedModel) -> None:
    tokens = model.tokenizer.encode("ax")
    writer, frames = ChunkWriter(answer(model, with_logprobs=True), with_ids=True), b""
    for event in events_of(model, 0, tokens, logprobs=True):
        frames += writer.write([event])
    contents = [chunk["choices"][0]["logprobs"]["content"] for chunk in read(frames)[1][1:]]
    assert [[entry["token"] for entry in content] for content in contents] == [["a", "x"], []]


def test_cached_tokens_are_those_of_the_first_choice(model: ServedModel) -> None:
    fields = {"kind": AnswerKind.COMPLETION, "n": 2, "prompt_tokens": 90, "prompts": [], "include_usage": True}
    events = [
        TokenEvent(f"{REQUEST}/{choice}", 0, None, end=End(FinishReason.LENGTH, cached=cached))
        for choice, cached in enumerate([16, 32, 48, 48])
    ]
    whole = answer(model, choices=4, **fields)
    whole.add(events)
    usage = json.loads(whole.body())["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 16 + 48}
    _, chunks = read(ChunkWriter(answer(model, choices=4, **fields), with_ids=True).write(events))
    assert chunks[-1]["usage"] == usage
    openai_document.check("CompletionUsage", usage)


def test_text_before_a_failure_is_sent_before_it(model: ServedModel) -> None:
    tokens = model.tokenizer.encode("xy")
    *events, _ = events_of(model, 0, tokens)
    writer = ChunkWriter(answer(model, kind=AnswerKind.COMPLETION), with_ids=True)
    failed = TokenEvent(f"{REQUEST}/0", 2, None, end=End(FinishReason.ERROR, error="boom"))
    frames = writer.write([*events, failed]).split(b"\n\n")
    assert indices(frames[0]) == [b"2"]  # the end is not among the events that the client has
    assert b'"text":"xy"' in frames[0]
    assert b"boom" in frames[1]
    assert frames[2:] == [b""]
    assert writer.done
