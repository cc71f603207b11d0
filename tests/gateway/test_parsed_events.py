"""Events of answers with reasoning and calls depend only on the tokens, not on their grouping or on where the stream is
resumed: in the Responses API and in Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

import openai_document
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import grouped
from parsed_lives import ARGUMENTS, CALL, STOP, Event, ParsedLife, is_json, numbers, object_of, parsed_lives, told
from pydantic import TypeAdapter

from gateway.answer.plan import AnswerKind, Plan
from gateway.anthropic.events import MessageEventWriter
from gateway.anthropic.objects import MessageHead, message
from gateway.errors import ApiError
from gateway.responses.events import ResponseEventWriter
from gateway.responses.objects import ResponseHead, response
from gateway.schemas.messages import MessageObject
from gateway.schemas.response_answers import ResponseEvent
from gateway.schemas.responses import ResponseRequest
from services.messages import TokenEvent
from services.requests import FinishReason, SamplingParams
from services.text import Tokenizer

ECHO = ResponseRequest.model_validate({"input": "hi"}).echo()
RESPONSE = ResponseHead("resp_1", "tiny", 7, 5, "default", ECHO)
MESSAGE = MessageHead("msg_1", "tiny", Plan(AnswerKind.MESSAGE, 7, "", 1, 1, prompt_tokens=5, max_new_tokens=300))
TEXT = "<think>\nI né 🐳\n</think>\n\nhello " + CALL + CALL
BOTH_CALLS = ParsedLife(TEXT)
HELD = TEXT[TEXT.index("🐳") : TEXT.index("weather") + 30] + "☃"  # comes with one token: reasoning, text and a call
AT_ONCE = ParsedLife(TEXT, (TEXT + STOP, SamplingParams(400, stop=(STOP, HELD)), None, 0))
OPENING = ["response.created", "response.in_progress"]
FIELDS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}
TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

Groups = Iterable[list[TokenEvent]]


class Api(Protocol):
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        """The events after number `after`."""
        ...

    def items(self, tokenizer: Tokenizer, life: ParsedLife) -> list[Any]:
        """The items of the whole answer."""
        ...


class Responses:
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        writer = ResponseEventWriter(RESPONSE, life.transcript(tokenizer), after, with_ids=True)
        return [self._event(frame) for group in groups for frame in writer.write(group).decode().split("\n\n")[:-1]]

    def _event(self, frame: str) -> Event:
        kind, id, data = frame.split("\n")
        said = json.loads(data.removeprefix("data: "))
        number = said["sequence_number"]
        assert (kind, id) == (f"event: {said['type']}", f"id: resp_1:{number}")
        if not said["type"].endswith(".delta"):
            return Event(number, said)
        assert said["delta"] or said["logprobs"]
        return Event(number, said, said["output_index"], said["delta"], tuple(said.get("logprobs", ())))

    def items(self, tokenizer: Tokenizer, life: ParsedLife) -> list[Any]:
        transcript = life.transcript(tokenizer)
        transcript.add_all(life.events(tokenizer))
        transcript.take()
        output: list[Any] = response(RESPONSE, transcript)["output"]
        return output


class Messages:
    def stream(self, tokenizer: Tokenizer, life: ParsedLife, groups: Groups, after: int = -1) -> list[Event]:
        writer, events = MessageEventWriter(MESSAGE, life.transcript(tokenizer), after, with_ids=True), []
        for group in groups:
            try:
                frames = writer.write(group)
            except ApiError as error:  # before any frame
                frames = writer.fail(error)
            events += [self._event(frame) for frame in frames.decode().split("\n\n")[:-1]]
        return events

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

    def items(self, tokenizer: Tokenizer, life: ParsedLife) -> list[Any]:
        transcript = life.transcript(tokenizer)
        transcript.add_all(life.events(tokenizer))
        transcript.take()
        content: list[Any] = json.loads(orjson.dumps(message(MESSAGE, transcript)))["content"]
        return content


APIS = pytest.mark.parametrize("api", [Responses(), Messages()], ids=["responses", "messages"])


# --- numbers -------------------------------------------------------------------------------------------------


@APIS
@settings(max_examples=40)
@given(data=st.data(), life=parsed_lives())
def test_grouping_changes_nothing(tokenizer: Tokenizer, api: Api, data: st.DataObject, life: ParsedLife) -> None:
    events = life.events(tokenizer)
    fine = api.stream(tokenizer, life, [[event] for event in events])
    coarse = api.stream(tokenizer, life, grouped(data.draw, events))
    assert told(fine) == told(coarse)
    assert set(numbers(coarse)) <= set(numbers(fine))
    for stream in (fine, coarse):
        assert numbers(stream) == sorted(set(numbers(stream)))


@APIS
@settings(max_examples=40)
@given(data=st.data(), life=parsed_lives())
def test_a_resumed_stream_has_the_rest(tokenizer: Tokenizer, api: Api, data: st.DataObject, life: ParsedLife) -> None:
    events = life.events(tokenizer)
    whole = api.stream(tokenizer, life, grouped(data.draw, events))
    last = len(numbers(whole)) - 1
    for index in data.draw(st.sets(st.integers(0, last), max_size=4)) if last >= 0 else ():
        check_rest(whole, index, api.stream(tokenizer, life, grouped(data.draw, events), numbers(whole)[index]))


@APIS
@pytest.mark.parametrize("life", [BOTH_CALLS, AT_ONCE], ids=["token by token", "at once"])
def test_resumed_after_every_event(tokenizer: Tokenizer, api: Api, life: ParsedLife) -> None:
    """Within reasoning, within a call, and between the events of one token."""
    events = life.events(tokenizer)
    whole = api.stream(tokenizer, life, [[event] for event in events])
    for index, number in enumerate(numbers(whole)):
        check_rest(whole, index, api.stream(tokenizer, life, [events], number))


def check_rest(whole: list[Event], index: int, rest: list[Event]) -> None:
    """`rest` is the stream resumed after the event `index` of `whole`."""
    assert all(number > numbers(whole)[index] for number in numbers(rest))
    assert told([*whole[: index + 1], *rest]) == told(whole)


# --- order ---------------------------------------------------------------------------------------------------


@given(life=parsed_lives())
def test_the_order_is_openai_s(tokenizer: Tokenizer, life: ParsedLife) -> None:
    """The events make the items, and each item is done before the next one begins."""
    *events, last = Responses().stream(tokenizer, life, [life.events(tokenizer)])
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
    assert made["output"] == items == Responses().items(tokenizer, life)
    statuses = [item["status"] for item in items]
    assert statuses[:-1] == ["completed"] * (len(items) - 1)
    assert statuses[-1:] == ([] if not items else ["completed" if ended else "incomplete"])
    assert items or reason in (FinishReason.ERROR, FinishReason.CANCELLED)
    assert len({item["id"] for item in items}) == len(items)
    spent = made["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert (spent > 0) == any(item["type"] == "reasoning" for item in items)
    assert spent <= made["usage"]["output_tokens"]


@given(life=parsed_lives())
def test_the_order_is_anthropic_s(tokenizer: Tokenizer, life: ParsedLife) -> None:
    blocks: list[Any] = []
    arguments: dict[int, str] = {}
    stopped = 0
    *events, last = (event.said for event in Messages().stream(tokenizer, life, [life.events(tokenizer)]))
    reason = life.reason(tokenizer)
    if reason in (FinishReason.ERROR, FinishReason.CANCELLED):
        assert last["type"] == "error"
        return
    assert [said["type"] for said in [*events[:2], last]] == ["message_start", "ping", "message_stop"]
    for said in events[2:-1]:
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
    assert blocks == Messages().items(tokenizer, life)
    ends = {FinishReason.STOP: "stop_sequence", FinishReason.LENGTH: "max_tokens"}
    assert events[-1]["delta"]["stop_reason"] == ends[reason]


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
        events[0].said["message"] | {"content": Messages().items(tokenizer, BOTH_CALLS)}
    )["content"]
    assert thought == {"type": "thinking", "thinking": "I né 🐳", "signature": ""}
    assert said == {"type": "text", "text": "hello", "citations": None}
    for call in calls:
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", json.loads(ARGUMENTS))
        assert call["id"].startswith("toolu_")
    assert calls[0]["id"] != calls[1]["id"]


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", '{"a": NaN}', '{"a": "' + "\\" + 'ud800"}', "{}", '"a"'])
def test_input_that_is_no_object_is_empty(tokenizer: Tokenizer, arguments: str) -> None:
    (call,) = Messages().items(tokenizer, ParsedLife('<tool_call>{"name": "f", "arguments": ' + arguments))
    assert call["input"] == {}


def test_input_is_written_as_the_model_wrote_it(tokenizer: Tokenizer) -> None:
    arguments = '{"id": 123456789012345678901234567890, "x": 1.10, "a": {"b": []}}'
    life = ParsedLife(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    transcript = life.transcript(tokenizer)
    transcript.add_all(life.events(tokenizer))
    transcript.take()
    assert arguments.encode() in orjson.dumps(message(MESSAGE, transcript))
