"""Responses with the official client and according to OpenAI's document."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import openai_document
import pytest
from stack import NAME

from gateway.schemas.responses import LOGPROBS

SCHEMAS = {
    "response.created": "ResponseCreatedEvent",
    "response.in_progress": "ResponseInProgressEvent",
    "response.output_item.added": "ResponseOutputItemAddedEvent",
    "response.content_part.added": "ResponseContentPartAddedEvent",
    "response.output_text.delta": "ResponseTextDeltaEvent",
    "response.output_text.done": "ResponseTextDoneEvent",
    "response.content_part.done": "ResponseContentPartDoneEvent",
    "response.output_item.done": "ResponseOutputItemDoneEvent",
    "response.completed": "ResponseCompletedEvent",
    "response.incomplete": "ResponseIncompleteEvent",
    "response.failed": "ResponseFailedEvent",
}
PATH = "/v1/responses"


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of a stream; asserts the name and the id of each event."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for frame in frames:
        event, *id, data = frame.split("\n")
        said = json.loads(data.removeprefix("data: "))
        assert event == f"event: {said['type']}"
        assert all(line.startswith("id: ") and line.endswith(f":{said['sequence_number']}") for line in id)
        found.append(said)
    return found


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


# --- create --------------------------------------------------------------------------------------------------


def test_create(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input="né 🐳", metadata={"a": "b"}, instructions="x", temperature=0)
    assert made.id.startswith("resp_")
    assert made.status == "completed"
    assert made.metadata == {"a": "b"}
    assert (made.instructions, made.temperature) == ("x", 0)
    assert made.output_text == "x"  # the template puts instructions first, and the engine repeats the prompt
    assert made.usage is not None
    assert made.usage.output_tokens == 3
    assert made.usage.total_tokens == made.usage.input_tokens + 3
    assert made.created_at <= (made.completed_at or 0) <= time.time()
    assert client.responses.retrieve(made.id) == made


def test_input_of_messages(client: openai.OpenAI) -> None:
    earlier = client.responses.create(model=NAME, input="hi")
    again: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        *[item.model_dump() for item in earlier.output],
        {"type": "message", "role": "user", "content": "c"},
    ]
    made = client.responses.create(model=NAME, input=again)
    assert made.usage is not None
    assert made.usage.input_tokens == len(["<system>", "a", "<eos>", "<assistant>", "h", "i", "<eos>"]) + 4


def test_a_conversation_continues(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input="hi", instructions="not carried over")
    assert first.output_text == "not carried over"
    second = client.responses.create(model=NAME, input="a", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    third = client.responses.create(model=NAME, input="b", previous_response_id=second.id, max_output_tokens=2)
    said = [("user", "hi"), ("assistant", "not carried over"), ("user", "a"), ("assistant", "hi"), ("user", "b")]
    whole: Any = [{"role": role, "content": content} for role, content in said]
    asked = client.responses.create(model=NAME, input=whole, max_output_tokens=2)
    assert third.usage == asked.usage
    assert (second.output_text, third.output_text) == ("hi", asked.output_text)


def test_a_conversation_that_cannot_continue(client: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="resp_0") as missing:
        client.responses.create(model=NAME, input="a", previous_response_id="resp_0")
    assert (missing.value.param, missing.value.code) == ("previous_response_id", "previous_response_not_found")
    failed = events_of(http.post(PATH, json={"input": "FAIL", "stream": True}).text)[0]["response"]["id"]
    with pytest.raises(openai.BadRequestError, match="failed"):
        client.responses.create(model=NAME, input="a", previous_response_id=failed)
    long: Any = {"max_output_tokens": 380, "extra_body": {"ignore_eos": True}}
    running = client.responses.create(model=NAME, input="SLOW", background=True, **long)
    with pytest.raises(openai.BadRequestError, match="not ended"):
        client.responses.create(model=NAME, input="a", previous_response_id=running.id)
    client.responses.cancel(running.id)


def test_a_response_that_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input="hi", store=False)
    assert made.output_text == "hi"
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)
    with pytest.raises(openai.BadRequestError, match=made.id):
        client.responses.create(model=NAME, input="hi", previous_response_id=made.id)


def test_other_requests_are_no_responses(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(chat.id)
    assert missing.value.code == "request_not_found"


# --- streams -------------------------------------------------------------------------------------------------


def test_a_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=NAME, input="né 🐳 漢", stream=True))
    assert [e.type for e in events][:4] == list(SCHEMAS)[:4]
    assert [e.type for e in events][-4:] == list(SCHEMAS)[5:9]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "né 🐳 漢"
    numbers = [e.sequence_number for e in events]
    assert numbers == sorted(set(numbers))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response == client.responses.retrieve(last.response.id)


def test_the_client_s_own_accumulation(client: openai.OpenAI) -> None:
    with client.responses.stream(model=NAME, input="hello world") as stream:
        made = stream.get_final_response()
    assert made.output_text == "hello world"
    with client.responses.stream(response_id=made.id, starting_after=2) as stream:
        assert stream.get_final_response().output_text == "hello world"


def test_a_stream_after_a_number_is_that_after_the_event(client: openai.OpenAI, http: httpx.Client) -> None:
    whole = events_of(http.post(PATH, json={"input": "SLOWné 🐳 hello", "stream": True, "stop": "hell"}).text)
    id, last = whole[0]["response"]["id"], whole[-1]["sequence_number"]
    for number in (0, last // 2, last, last + 1):  # no client has a number beyond the last
        rest = events_of(http.get(f"{PATH}/{id}", params={"stream": True, "starting_after": number}).text)
        header = {"Last-Event-ID": f"{id}:{number}"}
        assert events_of(http.get(f"{PATH}/{id}?stream=true", headers=header).text) == rest
        assert [e["sequence_number"] for e in rest[-1:]] == [last] * (number < last)
    with client.responses.retrieve(id, stream=True, starting_after=last - 1) as stream:
        assert [e.type for e in stream] == ["response.completed"]


@pytest.mark.parametrize(
    ("query", "header", "named"),
    [
        ("stream=yes", "", "stream"),
        ("starting_after=3", "", "starting_after"),
        ("stream=true&starting_after=-1", "", "starting_after"),
        ("stream=true&starting_after=x", "", "starting_after"),
        ("stream=true", "resp_0:3", "Last-Event-ID"),
        ("stream=true", "nonsense", "Last-Event-ID"),
    ],
)
def test_a_wrong_position_is_an_error(
    client: openai.OpenAI, http: httpx.Client, query: str, header: str, named: str
) -> None:
    id = client.responses.create(model=NAME, input="hi").id
    headers = {"Last-Event-ID": header} if header else {}
    refused = http.get(f"{PATH}/{id}?{query}", headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == named


def test_log_probabilities(client: openai.OpenAI, http: httpx.Client) -> None:
    body = {"input": "né", "include": [LOGPROBS], "top_logprobs": 2}
    whole = http.post(PATH, json=body).json()["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in whole] == ["<user>", "n", "\ufffd", "\ufffd", "<eos>"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole)
    events = events_of(http.post(PATH, json=body | {"stream": True}).text)
    said = [entry for e in events if e["type"] == "response.output_text.delta" for entry in e["logprobs"]]
    assert said == whole


# --- OpenAI's document ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"input": "né 🐳", "include": [LOGPROBS], "top_logprobs": 3, "metadata": {"a": "b"}, "user": "me"},
        {"input": "hello world", "max_output_tokens": 1, "instructions": "x"},
        {"input": "FAIL"},
        {"input": "FAILabc"},
        {"input": "hi", "background": True},
    ],
)
def test_answers_match_the_document(http: httpx.Client, asked: dict[str, Any]) -> None:
    events = events_of(http.post(PATH, json=asked | {"stream": True}).text)
    last = events[-1]["response"]
    assert http.get(f"{PATH}/{last['id']}").json() == last
    openai_document.check("Response", last)
    for event in events:
        openai_document.check(SCHEMAS[event["type"]], event)
