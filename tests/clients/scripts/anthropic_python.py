"""Anthropic's package, whose base URL is the server without `/v1`."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from examples import ASK, CLOCK_PARAMETERS, LENGTH, PARAMETERS, City, check_call, weather
from pydantic import BaseModel
from steps import API_KEY, MODEL, QUESTION, URL, expect, raised, step

client = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": LENGTH,
    "extra_body": {"temperature": 0},  # which this version has no argument for
    "messages": [{"role": "user", "content": ASK}],
    "tools": [
        {"name": "get_weather", "description": "the weather of a city", "input_schema": PARAMETERS},
        {"name": "get_time", "description": "the time", "input_schema": CLOCK_PARAMETERS},
    ],
}


class Answer(BaseModel):
    """Without bounds, which the package takes out of a schema."""

    city: City
    good: bool


def ask(**more: Any) -> Any:
    return client.messages.create(**ASKED | more)


@step("messages")
def _() -> str:
    answer = client.messages.create(
        model=MODEL, max_tokens=12, messages=MESSAGES, system="Be brief.", stop_sequences=["\n\n"]
    )
    expect(answer.content[0].type == "text" and answer.usage.output_tokens > 0, answer)
    expect(answer.stop_reason in ("end_turn", "max_tokens", "stop_sequence"), answer)
    return str(answer.content[0].text)


@step("blocks and history")
def _() -> None:
    first = client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES)
    history: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "And of Spain?"},
    ]
    expect(client.messages.create(model=MODEL, max_tokens=8, messages=history).content)


@step("stream")
def _() -> None:
    with client.messages.stream(model=MODEL, max_tokens=12, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text and final.content[0].text == text and final.usage.output_tokens > 0, text, final)


@step("stream of events")
def _() -> None:
    events = client.messages.create(model=MODEL, max_tokens=12, messages=MESSAGES, stream=True)
    kinds = [event.type for event in events]
    expect(kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds)


@step("count_tokens")
def _() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES)
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    cached = answer.usage.cache_read_input_tokens or 0  # Anthropic counts these apart
    expect(counted.input_tokens == answer.usage.input_tokens + cached, counted, answer.usage)


@step("async client")
async def _() -> None:
    async with AsyncAnthropic(base_url=URL, api_key=API_KEY, max_retries=0) as asynchronous:
        expect((await asynchronous.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES)).content)


@step("errors as exceptions")
def _() -> None:
    for call, kind in (
        (lambda: client.messages.create(model="nothing", max_tokens=4, messages=MESSAGES), anthropic.NotFoundError),
        (lambda: client.messages.create(model=MODEL, max_tokens=0, messages=[]), anthropic.BadRequestError),
    ):
        body = raised(kind, call).body
        expect(body["type"] == "error" and body["error"]["type"] and body["error"]["message"], body)


@step("tools: any, with a name, none, auto")
def _() -> str:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_time"}):
        answer = ask(tool_choice=choice | {"disable_parallel_tool_use": True})
        (block,) = answer.content
        expect(block.type == "tool_use" and block.id.startswith("toolu_"), answer)
        expect(answer.stop_reason == "tool_use" and choice.get("name") in (None, block.name), answer)
        check_call(block.name, block.input)
    expect(ask(tool_choice={"type": "none"}, max_tokens=12).content[0].type == "text")
    auto = ask(tool_choice={"type": "auto"}, max_tokens=40)
    expect(all(block.type in ("text", "tool_use") for block in auto.content), auto)
    return str(block)


@step("stream of tools")
def _() -> None:
    single = {"type": "any", "disable_parallel_tool_use": True}
    whole = ask(tool_choice=single)
    with client.messages.stream(**ASKED | {"tool_choice": single}) as stream:
        events = list(stream)
        final = stream.get_final_message()
    expect([block.model_dump() | {"id": ""} for block in final.content] == [
        block.model_dump() | {"id": ""} for block in whole.content
    ], final, whole)  # fmt: skip
    deltas = [event.partial_json for event in events if event.type == "input_json"]
    expect(json.loads("".join(deltas)) == final.content[0].input, deltas)
    expect(final.stop_reason == "tool_use" and final.usage.output_tokens == whole.usage.output_tokens, final)


@step("a tool loop")
def _() -> str:
    first = ask(tool_choice={"type": "any", "disable_parallel_tool_use": True})
    (block,) = first.content
    for content in ("sunny", [{"type": "text", "text": "sunny"}]):
        history = [
            *ASKED["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": content}]},
        ]
        last = ask(messages=history, tool_choice={"type": "none"}, max_tokens=16)
        expect(last.content[0].type == "text" and last.content[0].text, last)
    return str(last.content[0].text)


@step("tool_runner")
def _() -> None:
    runner = client.beta.messages.tool_runner(
        **ASKED | {"tools": [beta_tool(weather)], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        max_iterations=2,
        thread=False,  # no conversation held by the server, which is in beta
    )
    messages = list(runner)
    expect(len(messages) == 2, messages)
    for message in messages:
        check_call(message.content[0].name, message.content[0].input)


@step("count_tokens with tools")
def _() -> None:
    answer = ask(tool_choice={"type": "any"}, max_tokens=1)
    counted = client.messages.count_tokens(
        model=MODEL, messages=ASKED["messages"], tools=ASKED["tools"], tool_choice={"type": "any"}
    )
    cached = answer.usage.cache_read_input_tokens or 0
    expect(counted.input_tokens == answer.usage.input_tokens + cached, counted, answer.usage)


@step("parse with a type, and its stream")
def _() -> None:
    fields: Any = {"model": MODEL, "max_tokens": LENGTH, "messages": ASKED["messages"]}
    fields["extra_body"] = ASKED["extra_body"]
    answer = client.messages.parse(**fields, output_format=Answer)
    expect(isinstance(answer.parsed_output, Answer), answer)
    with client.messages.stream(**fields, output_format=Answer) as stream:
        expect(stream.get_final_message().parsed_output == answer.parsed_output)
