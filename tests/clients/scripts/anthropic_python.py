"""Anthropic's package, whose base URL is the server without `/v1`."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from steps import API_KEY, MODEL, QUESTION, TOOLS, URL, expect, step

client = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


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
        try:
            call()
        except kind as error:
            body: Any = error.body
            expect(body["type"] == "error" and body["error"]["type"] and body["error"]["message"], body)
            continue
        expect(False, "no error", kind)


@step("tools", needs=TOOLS)
def _() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools: Any = [{"name": "get_weather", "description": "the weather of a city", "input_schema": schema}]
    answer = client.messages.create(
        model=MODEL, max_tokens=60, messages=MESSAGES, tools=tools, tool_choice={"type": "any"}
    )
    expect(any(block.type == "tool_use" for block in answer.content), answer)
