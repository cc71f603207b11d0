"""The events of a message depend only on its tokens, not on their grouping or on where the stream is resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lives import CACHED, Life, NumberedEvents, events_of, grouped, lives

from gateway.answer.choice import Choice
from gateway.answer.items import Transcript
from gateway.answer.plan import AnswerKind, Plan
from gateway.anthropic.events import MessageEventWriter
from gateway.anthropic.objects import MessageHead, message
from gateway.errors import ApiError, Kind
from services.messages import TokenEvent
from services.requests import FinishReason, SamplingParams
from services.text import Tokenizer

PLAN = Plan(AnswerKind.MESSAGE, 7, "", choices=1, n=1, prompt_tokens=5, max_new_tokens=12)
HEAD = MessageHead("msg_1", "tiny", PLAN)
OPENING = ["message_start", "content_block_start", "ping"]
CLOSING = ["content_block_stop", "message_delta", "message_stop"]
FAILED = (FinishReason.CANCELLED, FinishReason.ERROR)


class Received(NumberedEvents):
    def read(self, frames: bytes) -> Received:
        for frame in frames.decode().split("\n\n")[:-1]:
            event, *id, data = frame.split("\n")
            said = json.loads(data.removeprefix("data: "))
            assert event == f"event: {said['type']}"
            if said["type"] == "content_block_delta":
                assert (said["index"], said["delta"]["type"]) == (0, "text_delta")
                assert said["delta"]["text"]
                self.text += said["delta"]["text"]
            else:
                self.others.append(said)
            if said["type"] in ("message_stop", "error"):
                assert not id
            else:
                number = int(id[0].removeprefix("id: msg_1:"))
                self.number(number)
        return self

    @property
    def kinds(self) -> list[str]:
        return [other["type"] for other in self.others]


def writer(tokenizer: Tokenizer, sampling: SamplingParams, after: int = -1) -> MessageEventWriter:
    return MessageEventWriter(HEAD, transcript(tokenizer, sampling), after, with_ids=True, request_id="req_1")


def transcript(tokenizer: Tokenizer, sampling: SamplingParams) -> Transcript:
    return Transcript(Choice(0, tokenizer.tables, sampling.stop, frozenset()), tokenizer, with_logprobs=False)


def read(writer: MessageEventWriter, groups: Any) -> Received:
    """Write as a stream does: an error without any frame before it ends the stream."""
    said = Received()
    for group in groups:
        try:
            said.read(writer.write(group))
        except ApiError as error:
            said.read(writer.fail(error))
    assert writer.done
    return said


def reason_of(events: list[TokenEvent]) -> FinishReason:
    end = events[-1].end
    assert end is not None
    return end.reason


@given(data=st.data(), life=lives())
def test_any_grouping_gives_the_same_events(tokenizer: Tokenizer, data: st.DataObject, life: Life) -> None:
    events = events_of(tokenizer, life)
    fine = read(writer(tokenizer, life[1]), [[event] for event in events])
    coarse = read(writer(tokenizer, life[1]), grouped(data.draw, events))
    assert fine.numbers == sorted(set(fine.numbers))
    assert coarse.texts == {n: fine.texts[max(m for m in fine.numbers if m <= n)] for n in coarse.numbers}
    assert fine.others == coarse.others
    assert fine.text == coarse.text


@given(data=st.data(), life=lives())
def test_a_resumed_stream_has_the_events_after_its_position(
    tokenizer: Tokenizer, data: st.DataObject, life: Life
) -> None:
    events = events_of(tokenizer, life)
    whole = read(writer(tokenizer, life[1]), grouped(data.draw, events))
    for after in [-1, *whole.numbers]:
        rest = read(writer(tokenizer, life[1], after), grouped(data.draw, events))
        before = whole.texts.get(after, "")
        assert all(number > after for number in rest.numbers)
        assert before + rest.text == whole.text
        said = [other for other, number in zip(whole.others, numbers_of(whole), strict=True) if number > after]
        assert rest.others == said
        assert rest.kinds[-1] in ("message_stop", "error")


def numbers_of(said: Received) -> list[float]:
    """The number of each event except deltas; that of the last event is the highest."""
    closing = said.numbers[-2:] if said.kinds[-1] == "message_stop" else []
    opening = [0, 1, 2] if "message_start" in said.kinds else []
    return [*opening, *closing, float("inf")]


@given(life=lives())
def test_the_order_is_anthropic_s(tokenizer: Tokenizer, life: Life) -> None:
    events = events_of(tokenizer, life)
    reason, said = reason_of(events), read(writer(tokenizer, life[1]), [events])
    if reason in FAILED:
        assert said.kinds == ([] if len(events) == 1 else OPENING) + ["error"]
        error = {"type": "invalid_request_error", "message": "The request was cancelled."}
        if reason is FinishReason.ERROR:
            error = {"type": "api_error", "message": "The generation failed: why"}
        assert said.others[-1] == {"type": "error", "error": error, "request_id": "req_1"}
        return
    assert said.kinds == OPENING + CLOSING
    assert said.numbers[:3] == [0, 1, 2]
    assert said.numbers[-1] == 2 + len(events) + 2
    begun, told = said.others[0]["message"], said.others[-2]
    assert (begun["id"], begun["content"], begun["stop_reason"]) == ("msg_1", [], None)
    assert (begun["usage"]["input_tokens"], begun["usage"]["output_tokens"]) == (5, 0)
    whole = transcript(tokenizer, life[1])
    for event in events:
        whole.add(event)
    whole.take()
    made = message(HEAD, whole)
    assert made["content"] == [{"type": "text", "text": said.text, "citations": None}]
    assert told["delta"] == {name: made[name] for name in ("stop_reason", "stop_sequence")}
    assert told["usage"].items() <= made["usage"].items()
    assert told["usage"]["input_tokens"] + told["usage"]["cache_read_input_tokens"] == 5
    assert told["usage"]["cache_read_input_tokens"] == CACHED
    assert told["usage"]["output_tokens"] == len(events) - 1
    expected = {FinishReason.STOP: "stop_sequence", FinishReason.LENGTH: "max_tokens"}
    assert made["stop_reason"] == expected[reason]
    assert (made["stop_sequence"] in life[1].stop) == (reason is FinishReason.STOP)


def test_no_event_follows_the_last(tokenizer: Tokenizer) -> None:
    life = ("hello world", SamplingParams(2), None, 0)
    events = events_of(tokenizer, life)
    last = read(writer(tokenizer, life[1]), [events]).numbers[-1]
    with pytest.raises(ApiError, match=f"the last one of 'msg_1' is {last}"):
        writer(tokenizer, life[1], last + 1).write(events)


def test_an_error_ends_the_stream_and_not_the_message(tokenizer: Tokenizer) -> None:
    life = ("hello world", SamplingParams(6), None, 0)
    events = events_of(tokenizer, life)
    first = writer(tokenizer, life[1])
    said = Received().read(first.write(events[:3]))
    broken = Received().read(first.fail(ApiError(Kind.INTERNAL, "gone")))
    assert first.done
    assert broken.others[0]["error"] == {"type": "api_error", "message": "gone"}
    again = read(writer(tokenizer, life[1], said.numbers[-1]), [events])
    assert said.text + again.text == "hello world" * 3
