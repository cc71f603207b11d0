"""Calls that something else than the model ends are not reported as calls to run, in all APIs, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import openai_document
import pytest
from echo_engine import WRITE
from parsed_lives import ARGUMENTS, CALL
from sse_client import read
from stack import NAME, Stack
from test_tool_requests import TEMPLATE, folder_of

from services.settings.settings import Settings

FUNCTION: dict[str, Any] = {"name": "weather", "parameters": {"type": "object"}}


@dataclass(frozen=True)
class Cut:
    """How an answer with one call ends, and what is right: the call's arguments (None: no call), and what each API says
    about the end."""

    fields: dict[str, Any]
    arguments: str | None
    chat: str
    response: str
    message: str


CUTS = {
    "by the model": Cut({}, ARGUMENTS, "tool_calls", "completed", "tool_use"),
    "in the name": Cut({"stop": ["eather"]}, None, "stop", "completed", "stop_sequence"),
    "before the arguments": Cut({"stop": ['{"city']}, "", "stop", "incomplete", "stop_sequence"),
    "in the arguments": Cut({"stop": ["né"]}, '{"city": "', "stop", "incomplete", "stop_sequence"),
    "in the arguments, kept": Cut(
        {"stop": ["né"], "include_stop_str_in_output": True}, '{"city": "né', "stop", "incomplete", "stop_sequence"
    ),
    "before the end of the arguments": Cut({"stop": ["}"]}, ARGUMENTS[:-1], "stop", "incomplete", "stop_sequence"),
    "after the arguments": Cut({"stop": ["}\n"]}, ARGUMENTS, "tool_calls", "completed", "stop_sequence"),
    "at the end of the call": Cut({"stop": ["</tool_call>"]}, ARGUMENTS, "tool_calls", "completed", "stop_sequence"),
    "by a token in the arguments": Cut({"stop_token_ids": "🐳"}, '{"city": "né ', "stop", "incomplete", "end_turn"),
    "by a token after the arguments": Cut({"stop_token_ids": "/"}, ARGUMENTS, "tool_calls", "completed", "tool_use"),
    "by the limit": Cut({"max_tokens": "🐳"}, '{"city": "né ', "length", "incomplete", "max_tokens"),
}


@pytest.fixture(scope="module")
def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = folder_of(tmp_path_factory.mktemp("cut"), TEMPLATE)
    with Stack(redis_url, "cut", folder, Settings(override_generation_config={"max_new_tokens": 120})) as stack:
        yield stack


def fields_of(stack: Stack, cut: Cut) -> dict[str, Any]:
    """The fields of the cut. A token id and a number of tokens are those of the text that stands for them."""
    made = dict(cut.fields)
    if "stop_token_ids" in made:
        made["stop_token_ids"] = stack.tokenizer.encode(made["stop_token_ids"])[:1]
    if "max_tokens" in made:
        made["max_tokens"] = len(stack.tokenizer.encode(CALL.partition(made["max_tokens"])[0]))
    return made


@pytest.mark.parametrize("name", CUTS)
def test_of_a_chat(stack: Stack, client: openai.OpenAI, name: str) -> None:
    cut = CUTS[name]
    body: Any = {
        "model": NAME,
        "messages": [{"role": "user", "content": WRITE + CALL}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "extra_body": fields_of(stack, cut),
    }
    made = client.chat.completions.create(**body).choices[0]
    contents, arguments, ends = "", [], []
    for chunk in client.chat.completions.create(**body, stream=True):
        (choice,) = chunk.choices
        contents += choice.delta.content or ""
        ends += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or ():
            assert call.function is not None
            arguments += [""] if call.id else []
            arguments[-1] += call.function.arguments or ""
    assert [call.function.arguments for call in made.message.tool_calls or ()] == arguments  # type: ignore[union-attr]
    assert arguments == ([] if cut.arguments is None else [cut.arguments])
    assert (made.message.content or "") == contents
    assert ([made.finish_reason], ends) == ([cut.chat], [cut.chat])


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_end_in_the_same_way_however_they_were_chosen(client: openai.OpenAI, choice: Any) -> None:
    body: Any = {"messages": [{"role": "user", "content": WRITE + CALL}], "tool_choice": choice}
    body |= {"model": NAME, "tools": [{"type": "function", "function": FUNCTION}]}
    assert client.chat.completions.create(**body).choices[0].finish_reason == "tool_calls"
    chunks = list(client.chat.completions.create(**body, stream=True))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("name", CUTS)
def test_of_a_response(stack: Stack, http: httpx.Client, name: str) -> None:
    cut, fields = CUTS[name], fields_of(stack, CUTS[name])
    body = {"input": WRITE + CALL, "tools": [{"type": "function", **FUNCTION}]} | fields
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    made = http.post("/v1/responses", json=body).json()
    *events, last = [event.json() for event in read(http.post("/v1/responses", json=body | {"stream": True}))]
    assert last["type"] == f"response.{cut.response}"
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    for response in (made, last["response"], http.get(f"/v1/responses/{made['id']}").json()):
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert [call["arguments"] for call in calls] == ([] if cut.arguments is None else [cut.arguments])
        assert (response["status"], response["output"][-1]["status"]) == (cut.response, cut.response)
        limit = {"reason": "max_output_tokens"} if "max_output_tokens" in body else None
        assert response["incomplete_details"] == limit
        openai_document.check("Response", response)
    assert ended == last["response"]["output"]


@pytest.mark.parametrize("name", CUTS)
def test_of_a_message(stack: Stack, name: str) -> None:
    cut, fields = CUTS[name], fields_of(stack, CUTS[name])
    body: Any = {
        "model": NAME,
        "max_tokens": fields.pop("max_tokens", 120),
        "messages": [{"role": "user", "content": WRITE + CALL}],
        "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
        "stop_sequences": fields.pop("stop", []),
        "extra_body": fields,
    }
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        made = client.messages.create(**body)
        with client.messages.create(**body, stream=True) as stream:
            events = list(stream)
    inputs = [block.input for block in made.content if block.type == "tool_use"]
    whole = cut.arguments == ARGUMENTS
    assert inputs == ([] if cut.arguments is None else [json.loads(ARGUMENTS) if whole else {}])
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    written = "".join(delta.partial_json for delta in deltas if delta.type == "input_json_delta")
    assert written == (cut.arguments or "")
    (end,) = [event.delta for event in events if event.type == "message_delta"]
    sequence = body["stop_sequences"][0] if cut.message == "stop_sequence" else None
    for told in (made, end):
        assert (told.stop_reason, told.stop_sequence) == (cut.message, sequence)
