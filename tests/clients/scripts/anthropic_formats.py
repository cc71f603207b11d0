"""Forced calls in a family's own format, and its thinking, by Anthropic's package."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from examples import ASK, CLOCK_PARAMETERS, LENGTH, PARAMETERS, check_call
from steps import API_KEY, BUDGET, MODEL, REASONS, URL, expect, step

client = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0, timeout=120)
SINGLE = {"disable_parallel_tool_use": True}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": LENGTH,
    "extra_body": {"temperature": 0, **BUDGET},
    "messages": [{"role": "user", "content": ASK}],
    "tool_choice": {"type": "any", **SINGLE},
    "tools": [
        {"name": "get_weather", "description": "the weather of a city", "input_schema": PARAMETERS},
        {"name": "get_time", "description": "the time", "input_schema": CLOCK_PARAMETERS},
    ],
}


def check(message: Any) -> Any:
    """Raises unless the message ends with one valid call; returns its block."""
    block = message.content[-1]
    kinds = [one.type for one in message.content]
    expect(kinds.count("tool_use") == 1 and message.stop_reason == "tool_use", message)
    expect(REASONS != "must" or kinds[0] == "thinking", message)
    check_call(block.name, block.input)
    return block


@step("any, and with a name")
def _() -> str:
    check(client.messages.create(**ASKED))
    named = {"type": "tool", "name": "get_time", **SINGLE}
    block = check(client.messages.create(**ASKED | {"tool_choice": named}))
    expect(block.name == "get_time", block)
    return str(block)


@step("a stream is the answer as a whole")
def _() -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        final = stream.get_final_message()
    check(final)
    one, other = ([block.model_dump() | {"id": ""} for block in made.content] for made in (final, whole))
    expect(one == other, final, whole)


@step("a call and its result in the history")
def _() -> None:
    first = client.messages.create(**ASKED)
    result = {"type": "tool_result", "tool_use_id": check(first).id, "content": "sunny"}
    history = [
        *ASKED["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    check(client.messages.create(**ASKED | {"messages": history}))
