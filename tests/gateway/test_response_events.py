"""The events of a response depend only on its tokens, not on their grouping or on where the stream is resumed."""

from __future__ import annotations

import json

import openai_document
from hypothesis import given
from hypothesis import strategies as st
from lives import CACHED, ID, Life, NumberedEvents, events_of, grouped, lives
from parsed_lives import ParsedLife

from gateway.answer.choice import Choice
from gateway.answer.items import Transcript
from gateway.errors import ApiError, Kind
from gateway.responses.events import ResponseEventWriter
from gateway.responses.objects import ResponseHead, response
from services.messages import End, TokenEvent
from services.requests import FinishReason, SamplingParams
from services.text import Tokenizer

ECHO = {"background": False, "store": True}
HEAD = ResponseHead("resp_1", "tiny", 7, 5, "default", ECHO)
OPENING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


class Received(NumberedEvents):
    def read(self, frames: bytes) -> Received:
        for frame in frames.decode().split("\n\n")[:-1]:
            event, id, data = frame.split("\n")
            said = json.loads(data.removeprefix("data: "))
            number = said["sequence_number"]
            assert event == f"event: {said['type']}"
            assert id == f"id: resp_1:{number}"
            if said["type"] == "response.output_text.delta":
                self.text += said["delta"]
                self.logprobs += said["logprobs"]
            else:
                self.others.append(said)
            self.number(number)
        return self


def writer(tokenizer: Tokenizer, sampling: SamplingParams, after: int = -1) -> ResponseEventWriter:
    choice = Choice(0, tokenizer.tables, sampling.stop, frozenset())
    return ResponseEventWriter(HEAD, Transcript(choice, tokenizer, sampling.logprobs is not None), after, with_ids=True)


@given(data=st.data(), life=lives())
def test_any_grouping_gives_the_same_events(tokenizer: Tokenizer, data: st.DataObject, life: Life) -> None:
    events = events_of(tokenizer, life)
    fine, coarse = Received(), Received()
    one, many = writer(tokenizer, life[1]), writer(tokenizer, life[1])
    for event in events:
        fine.read(one.write([event]))
    for group in grouped(data.draw, events):
        coarse.read(many.write(group))
    assert fine.numbers == sorted(set(fine.numbers))
    assert coarse.texts == {n: fine.texts[max(m for m in fine.numbers if m <= n)] for n in coarse.numbers}
    assert fine.others == coarse.others
    assert fine.logprobs == coarse.logprobs
    assert one.done
    assert many.done


@given(data=st.data(), life=lives())
def test_a_resumed_stream_has_the_events_after_its_position(
    tokenizer: Tokenizer, data: st.DataObject, life: Life
) -> None:
    events = events_of(tokenizer, life)
    first, whole = writer(tokenizer, life[1]), Received()
    for group in grouped(data.draw, events):
        whole.read(first.write(group))
    for after in [-1, *whole.numbers, 10_000]:
        again, rest = writer(tokenizer, life[1], after), Received()
        for group in grouped(data.draw, events):
            rest.read(again.write(group))
        before = whole.texts.get(after, "" if after < 0 else whole.text)
        assert all(number > after for number in rest.numbers)
        assert before + rest.text == whole.text
        assert rest.others == [other for other in whole.others if other["sequence_number"] > after]
        assert rest.numbers[-1:] == ([whole.numbers[-1]] if after < whole.numbers[-1] else [])


@given(life=lives())
def test_the_order_is_openai_s(tokenizer: Tokenizer, life: Life) -> None:
    events = events_of(tokenizer, life)
    said = Received().read(writer(tokenizer, life[1]).write(events))
    types = [other["type"] for other in said.others]
    last = said.others[-1]["response"]
    reason = events[-1].end.reason if events[-1].end else None
    assert said.numbers[-1] == 3 + len(events) + 4
    if len(events) == 1 and reason in (FinishReason.CANCELLED, FinishReason.ERROR):
        assert types[:-1] == ["response.created"]
        assert last["output"] == []
    else:
        assert types[:-1] == (OPENING if reason is FinishReason.ERROR else OPENING + CLOSING)
        assert said.numbers[:4] == [0, 1, 2, 3]
        assert last["output"][0]["content"][0]["text"] == said.text
        assert last["output"][0]["content"][0]["logprobs"] == said.logprobs
    kinds = {FinishReason.STOP: ("completed", "completed"), FinishReason.LENGTH: ("incomplete", "incomplete")}
    kinds |= {FinishReason.CANCELLED: ("incomplete", "cancelled"), FinishReason.ERROR: ("failed", "failed")}
    assert reason is not None
    assert (types[-1].removeprefix("response."), last["status"]) == kinds[reason]
    assert all(other["response"]["usage"] is None for other in said.others[:-1] if "response" in other)
    assert last["usage"]["output_tokens"] == len(events) - 1
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == CACHED
    assert (last["error"] is not None) == (reason is FinishReason.ERROR)
    assert (last["incomplete_details"] is not None) == (reason is FinishReason.LENGTH)
    if life[1].logprobs is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
        assert len(said.logprobs) == len(events) - 1


def test_an_error_ends_the_stream_and_not_the_response(tokenizer: Tokenizer) -> None:
    life = ("hello world", SamplingParams(6), None, 0)
    events = events_of(tokenizer, life)
    first, again = writer(tokenizer, life[1]), Received()
    said = Received().read(first.write(events[:3]))
    frame = first.fail(ApiError(Kind.INTERNAL, "gone")).decode()
    assert first.done
    event, data = frame.rstrip().split("\n")
    error = json.loads(data.removeprefix("data: "))
    assert event == "event: error"
    assert error["error"]["message"] == error["message"] == "gone"
    assert error["sequence_number"] == said.numbers[-1]
    again.read(writer(tokenizer, life[1], error["sequence_number"]).write(events))
    assert said.text + again.text == "hello world" * 3
    openai_document.check("ResponseErrorEvent", error)


def test_a_call_that_is_cut_off_deeper_than_python_reads(tokenizer: Tokenizer) -> None:
    called = ParsedLife('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 5000)
    *tokens, _ = called.events(tokenizer)
    transcript = called.transcript(tokenizer)
    transcript.add_all([*tokens, TokenEvent(ID, len(tokens), None, end=End(FinishReason.LENGTH, cached=CACHED))])
    transcript.take()
    (call,) = response(HEAD, transcript)["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a": ' + "[" * 5000)
