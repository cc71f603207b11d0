"""Events of answers, with reasoning and calls and without, depend only on the tokens, not on their grouping or on where
the stream is resumed: in the Responses API and in Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import openai_document
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lives import CACHED, ID, grouped
from parsed_lives import ARGUMENTS, CALL, Event, ParsedLife, answers, is_json, numbers, object_of, told
from pydantic import TypeAdapter

from gateway.answer.plan import AnswerKind, Plan
from gateway.anthropic.events import MessageEventWriter
from gateway.anthropic.objects import MessageHead, message
from gateway.errors import ApiError, Kind
from gateway.responses.events import ResponseEventWriter
from gateway.responses.objects import ResponseHead, response
from gateway.schemas.messages import MessageObject
from gateway.schemas.response_answers import ResponseEvent
from gateway.schemas.responses import ResponseRequest
from services.messages import End, TokenEvent
from services.requests import FinishReason, SamplingParams
from services.text import Tokenizer

ECHO = ResponseRequest.model_validate({"input": "hi"}).echo()
RESPONSE = ResponseHead("resp_1", "tiny", 7, 5, "default", ECHO)
MESSAGE = MessageHead("msg_1", "tiny", Plan(AnswerKind.MESSAGE, 7, "", 1, 1, prompt_tokens=5, max_new_tokens=300))
TEXT = "<think>\nI né 🐳\n</think>\n\nhello " + CALL + CALL
BOTH_CALLS = ParsedLife(TEXT)
PLAIN = ParsedLife("hello world", ("hello world", SamplingParams(6), None, 0), parsed=False)
OPENING = ["response.created", "response.in_progress"]
FIELDS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}
FAILED = {
    FinishReason.CANCELLED: {"type": "invalid_request_error", "message": "The request was cancelled."},
    FinishReason.ERROR: {"type": "api_error", "message": "The generation failed: why"},
}
TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

Groups = Iterable[list[TokenEvent]]


class Api(Protocol):
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        """The events after number `after`."""
        ...

    def broken(self, tokenizer: Tokenizer, life: ParsedLife, count: int) -> tuple[list[Event], Any]:
        """The events of the first `count` tokens, and the one of an error that ends the stream then."""
        ...


class Responses:
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        writer = ResponseEventWriter(RESPONSE, life.transcript(tokenizer), after, with_ids=True)
        return [event for group in groups for event in self._events(writer.write(group))]

    def broken(self, tokenizer: Tokenizer, life: ParsedLife, count: int) -> tuple[list[Event], Any]:
        writer = ResponseEventWriter(RESPONSE, life.transcript(tokenizer), with_ids=True)
        said = self._events(writer.write(life.events(tokenizer)[:count]))
        event, data = writer.fail(ApiError(Kind.INTERNAL, "gone")).decode().rstrip().split("\n")
        assert (event, writer.done) == ("event: error", True)
        error = json.loads(data.removeprefix("data: "))
        openai_document.check("ResponseErrorEvent", error)
        assert (error["message"], error["sequence_number"]) == (error["error"]["message"], numbers(said)[-1])
        return said, error["error"]

    def _events(self, frames: bytes) -> list[Event]:
        return [self._event(frame) for frame in frames.decode().split("\n\n")[:-1]]

    def _event(self, frame: str) -> Event:
        kind, id, data = frame.split("\n")
        said = json.loads(data.removeprefix("data: "))
        number = said["sequence_number"]
        assert (kind, id) == (f"event: {said['type']}", f"id: resp_1:{number}")
        if not said["type"].endswith(".delta"):
            return Event(number, said)
        assert said["delta"] or said["logprobs"]
        return Event(number, said, said["output_index"], said["delta"], tuple(said.get("logprobs", ())))


class Messages:
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        writer, events = MessageEventWriter(MESSAGE, life.transcript(tokenizer), after, with_ids=True), []
        for group in groups:
            try:
                frames = writer.write(group)
            except ApiError as error:  # before any frame
                frames = writer.fail(error)
            events += self._events(frames)
        assert writer.done
        return events

    def broken(self, tokenizer: Tokenizer, life: ParsedLife, count: int) -> tuple[list[Event], Any]:
        writer = MessageEventWriter(MESSAGE, life.transcript(tokenizer), with_ids=True, request_id="req_1")
        said = self._events(writer.write(life.events(tokenizer)[:count]))
        (error,) = self._events(writer.fail(ApiError(Kind.INTERNAL, "gone")))
        assert (error.said["request_id"], writer.done) == ("req_1", True)
        return said, error.said["error"]

    def _events(self, frames: bytes) -> list[Event]:
        return [self._event(frame) for frame in frames.decode().split("\n\n")[:-1]]

    def _event(self, frame: str) -> Event:
        kind, *id, data = frame.split("\n")
        said = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {said['type']}"
        number = int(id[0].removeprefix("id: msg_1:")) if id else None
        delta = said.get("delta", {})
        field = TEXTS.get(delta.get("type"))
        if field is None:
            return Event(number, said)
        assert delta[field]
        return Event(number, said, said["index"], delta[field])

    def whole(self, tokenizer: Tokenizer, life: ParsedLife) -> Any:
        return json.loads(orjson.dumps(message(MESSAGE, life.heard(tokenizer))))


APIS = pytest.mark.parametrize("api", [Responses(), Messages()], ids=["responses", "messages"])


# --- numbers -------------------------------------------------------------------------------------------------


@APIS
@given(data=st.data(), life=answers())
def test_grouping_changes_nothing(tokenizer: Tokenizer, api: Api, data: st.DataObject, life: ParsedLife) -> None:
    events = life.events(tokenizer)
    fine = api.stream(tokenizer, life, [[event] for event in events])
    coarse = api.stream(tokenizer, life, grouped(data.draw, events))
    assert told(fine) == told(coarse)
    for number in numbers(coarse):
        assert until(number, coarse) == until(number, fine)
    for stream in (fine, coarse):
        assert numbers(stream) == sorted(set(numbers(stream)))


def until(number: int, events: list[Event]) -> list[Any]:
    """What a client has that has received event `number`, without log probabilities, which may come later."""
    received = [event for event in events if event.number is not None and event.number <= number]
    return told(replace(event, logprobs=()) for event in received)


@APIS
@given(data=st.data(), life=answers())
def test_a_resumed_stream_has_the_rest(tokenizer: Tokenizer, api: Api, data: st.DataObject, life: ParsedLife) -> None:
    events = life.events(tokenizer)
    whole = api.stream(tokenizer, life, grouped(data.draw, events))
    last = len(numbers(whole)) - 1
    assert told(api.stream(tokenizer, life, grouped(data.draw, events))) == told(whole)
    for index in data.draw(st.sets(st.integers(0, last), max_size=4)) if last >= 0 else ():
        check_rest(whole, index, api.stream(tokenizer, life, grouped(data.draw, events), numbers(whole)[index]))


def check_rest(whole: list[Event], index: int, rest: list[Event]) -> None:
    """`rest` is the stream resumed after the event `index` of `whole`."""
    assert all(number > numbers(whole)[index] for number in numbers(rest))
    assert told([*whole[: index + 1], *rest]) == told(whole)


@APIS
@pytest.mark.parametrize("life", [BOTH_CALLS, PLAIN], ids=["parsed", "plain"])
def test_an_error_ends_the_stream_and_not_the_answer(tokenizer: Tokenizer, api: Api, life: ParsedLife) -> None:
    said, error = api.broken(tokenizer, life, 3)
    assert error["message"] == "gone"
    events = life.events(tokenizer)
    rest = api.stream(tokenizer, life, [events], numbers(said)[-1])
    assert told([*said, *rest]) == told(api.stream(tokenizer, life, [events]))


def test_no_event_follows_the_last(tokenizer: Tokenizer) -> None:
    events = PLAIN.events(tokenizer)
    assert Responses().stream(tokenizer, PLAIN, [events], 10_000) == []
    last = numbers(Messages().stream(tokenizer, PLAIN, [events]))[-1]
    with pytest.raises(ApiError, match=f"the last one of 'msg_1' is {last}"):
        MessageEventWriter(MESSAGE, PLAIN.transcript(tokenizer), last + 1).write(events)


# --- order ---------------------------------------------------------------------------------------------------


@given(life=answers())
def test_the_order_is_openai_s(tokenizer: Tokenizer, life: ParsedLife) -> None:
    """The events make the items, and each item is done before the next one begins."""
    given = life.events(tokenizer)
    *events, last = Responses().stream(tokenizer, life, [given])
    items: list[Any] = []
    done = 0
    for event in events[2:]:
        said = event.said
        kind, _, move = said["type"].rpartition(".")
        if said["type"] == "response.output_item.added":
            assert said["output_index"] == len(items) == done
            items.append(said["item"])
            continue
        assert said["output_index"] == len(items) - 1 == done
        item = items[-1]
        if kind == "response.output_item":
            assert said["item"] | {"status": "in_progress"} == item
            item["status"] = said["item"]["status"]
            done += 1
            continue
        assert said["item_id"] == item["id"]
        if said["type"] == "response.content_part.added":
            item["content"].append(said["part"])
        elif kind == "response.content_part":
            assert said["part"] == item["content"][0]
        elif move == "delta":
            part = item if item["type"] == "function_call" else item["content"][0]
            part[FIELDS[kind]] += said["delta"]
            part.get("logprobs", []).extend(said.get("logprobs", ()))
        else:
            part = item if item["type"] == "function_call" else item["content"][0]
            assert {name: part[name] for name in said.keys() & part.keys() - {"type"}}.items() <= said.items()
            assert said[FIELDS[kind]] == part[FIELDS[kind]]
    reason, made = life.reason(tokenizer), last.said["response"]
    if items and items[-1]["type"] == "function_call":  # a stop string ended it, so its arguments say if it is whole
        ended = is_json(items[-1]["arguments"]) or (reason is FinishReason.STOP and life.life is None)
    else:
        ended = reason is FinishReason.STOP
    if reason is FinishReason.ERROR and done < len(items):
        items[-1]["status"] = "completed" if ended else "incomplete"
    assert [event.said["type"] for event in events[:2]] in (OPENING, OPENING[:1])
    assert made["output"] == items == response(RESPONSE, life.heard(tokenizer))["output"]
    assert all(event.said["response"]["usage"] is None for event in events if "response" in event.said)
    assert made["usage"]["output_tokens"] == len(given) - 1
    assert made["usage"]["input_tokens_details"]["cached_tokens"] == CACHED
    assert (made["error"] is not None) == (reason is FinishReason.ERROR)
    assert (made["incomplete_details"] is not None) == (reason is FinishReason.LENGTH)
    status = {FinishReason.ERROR: "failed", FinishReason.CANCELLED: "cancelled"}
    whole = reason is FinishReason.STOP and ended
    assert made["status"] == status.get(reason, "completed" if whole else "incomplete")
    assert last.said["type"] == f"response.{'incomplete' if made['status'] == 'cancelled' else made['status']}"
    if not life.parsed:
        assert numbers([*events, last])[-1] == 3 + len(given) + 4
        if items and life.sampling.logprobs is not None and reason not in FAILED:
            assert len(items[0]["content"][0]["logprobs"]) == len(given) - 1
    statuses = [item["status"] for item in items]
    assert statuses[:-1] == ["completed"] * (len(items) - 1)
    assert statuses[-1:] == ([] if not items else ["completed" if ended else "incomplete"])
    assert items or reason in (FinishReason.ERROR, FinishReason.CANCELLED)
    assert len({item["id"] for item in items}) == len(items)
    spent = made["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert (spent > 0) == any(item["type"] == "reasoning" for item in items)
    assert spent <= made["usage"]["output_tokens"]


@given(life=answers())
def test_the_order_is_anthropic_s(tokenizer: Tokenizer, life: ParsedLife) -> None:
    blocks: list[Any] = []
    arguments: dict[int, str] = {}
    stopped = 0
    given = life.events(tokenizer)
    stream = Messages().stream(tokenizer, life, [given])
    *events, last = (event.said for event in stream)
    reason = life.reason(tokenizer)
    if reason in FAILED:
        assert (last["type"], last["error"]) == ("error", FAILED[reason])
        assert len(given) > 1 or not events
        return
    assert events.pop(1 if life.parsed else 2)["type"] == "ping"
    begun, *events, end = events
    assert [said["type"] for said in (begun, end, last)] == ["message_start", "message_delta", "message_stop"]
    for said in events:
        if said["type"] == "content_block_start":
            assert said["index"] == len(blocks) == stopped
            blocks.append(said["content_block"])
            continue
        assert said["index"] == len(blocks) - 1 == stopped
        if said["type"] == "content_block_stop":
            stopped += 1
        elif said["delta"]["type"] == "input_json_delta":
            arguments[said["index"]] = arguments.get(said["index"], "") + said["delta"]["partial_json"]
        else:
            kind, text = said["delta"].values()
            blocks[-1][kind.removesuffix("_delta")] += text
    assert stopped == len(blocks) > 0
    for index, text in arguments.items():
        blocks[index]["input"] = object_of(text)
    whole = Messages().whole(tokenizer, life)
    assert blocks == whole["content"]
    assert end["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert whole["stop_reason"] == {FinishReason.STOP: "stop_sequence", FinishReason.LENGTH: "max_tokens"}[reason]
    assert (whole["stop_sequence"] in life.sampling.stop) == (reason is FinishReason.STOP)
    assert (begun["message"]["id"], begun["message"]["content"], begun["message"]["stop_reason"]) == ("msg_1", [], None)
    assert (begun["message"]["usage"]["input_tokens"], begun["message"]["usage"]["output_tokens"]) == (5, 0)
    assert end["usage"].items() <= whole["usage"].items()
    assert (end["usage"]["input_tokens"], end["usage"]["cache_read_input_tokens"]) == (5 - CACHED, CACHED)
    assert end["usage"]["output_tokens"] == len(given) - 1
    if not life.parsed:
        assert numbers(stream)[-1] == 2 + len(given) + 2


# --- objects -------------------------------------------------------------------------------------------------


def test_a_response_with_calls(tokenizer: Tokenizer) -> None:
    events = Responses().stream(tokenizer, BOTH_CALLS, [BOTH_CALLS.events(tokenizer)])
    kinds = {event.said["type"]: event.said for event in events}
    assert len(kinds) == 13
    for kind in kinds.values():
        TypeAdapter(ResponseEvent).validate_python(kind)
        openai_document.check("ResponseStreamEvent", kind)
    made = events[-1].said["response"]
    assert made["status"] == "completed"
    thought, said, *calls = made["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "I né 🐳"}]
    assert said["content"][0]["text"] == "hello"
    for call in calls:
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", ARGUMENTS)
    assert [item["id"].partition("_")[0] for item in made["output"]] == ["rs", "msg", "fc", "fc"]
    assert all(call["call_id"].startswith("call_") for call in calls)
    assert calls[0]["call_id"] != calls[1]["call_id"]


def test_a_message_with_calls(tokenizer: Tokenizer) -> None:
    events = Messages().stream(tokenizer, BOTH_CALLS, [BOTH_CALLS.events(tokenizer)])
    assert events[-2].said["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    thought, said, *calls = TypeAdapter(MessageObject).validate_python(
        events[0].said["message"] | {"content": Messages().whole(tokenizer, BOTH_CALLS)["content"]}
    )["content"]
    assert thought == {"type": "thinking", "thinking": "I né 🐳", "signature": ""}
    assert said == {"type": "text", "text": "hello", "citations": None}
    for call in calls:
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", json.loads(ARGUMENTS))
        assert call["id"].startswith("toolu_")
    assert calls[0]["id"] != calls[1]["id"]


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", '{"a": NaN}', '{"a": "' + "\\" + 'ud800"}', "{}", '"a"'])
def test_input_that_is_no_object_is_empty(tokenizer: Tokenizer, arguments: str) -> None:
    life = ParsedLife('<tool_call>{"name": "f", "arguments": ' + arguments)
    (call,) = Messages().whole(tokenizer, life)["content"]
    assert call["input"] == {}


def test_input_is_written_as_the_model_wrote_it(tokenizer: Tokenizer) -> None:
    arguments = '{"id": 123456789012345678901234567890, "x": 1.10, "a": {"b": []}}'
    life = ParsedLife(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert arguments.encode() in orjson.dumps(message(MESSAGE, life.heard(tokenizer)))


def test_a_call_that_is_cut_off_deeper_than_python_reads(tokenizer: Tokenizer) -> None:
    called = ParsedLife('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 5000)
    *tokens, _ = called.events(tokenizer)
    transcript = called.transcript(tokenizer)
    transcript.add_all([*tokens, TokenEvent(ID, len(tokens), None, end=End(FinishReason.LENGTH, cached=CACHED))])
    transcript.take()
    (call,) = response(RESPONSE, transcript)["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a": ' + "[" * 5000)
