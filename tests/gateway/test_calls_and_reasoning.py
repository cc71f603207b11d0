"""Calls and reasoning in the Responses API and in Anthropic's, with their official clients, and at another gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import openai_document
import pytest
from echo_engine import WRITE
from parsed_lives import ARGUMENTS, CALL
from stack import NAME, Stack
from test_tool_requests import TEMPLATE, folder_of

from services.settings.settings import Settings

WRITTEN = f"{WRITE}<think>I né 🐳</think>hello {CALL}"
TOOL: dict[str, Any] = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
TOOLS: Any = [{"type": "function", **TOOL}]
BLOCK_TOOLS: Any = [{"name": "weather", "input_schema": {"type": "object"}}]
PATH = "/v1/responses"


@pytest.fixture(scope="module")
def stack(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = folder_of(tmp_path_factory.mktemp("calling"), TEMPLATE)
    with Stack(
        redis_url,
        "calling",
        folder,
        Settings(reasoning_parser="qwen3", override_generation_config={"max_new_tokens": 120}),
    ) as stack:
        yield stack


# --- Responses -----------------------------------------------------------------------------------------------


def test_a_response_and_its_stream(client: openai.OpenAI) -> None:
    made = client.responses.create(model=NAME, input=WRITTEN, tools=TOOLS, tool_choice="auto")
    assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]
    assert (made.status, made.output_text) == ("completed", "hello")
    assert made.output[-1].arguments == ARGUMENTS  # type: ignore[union-attr]
    assert made.usage is not None
    assert 0 < made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens
    with client.responses.stream(model=NAME, input=WRITTEN, tools=TOOLS) as stream:
        streamed = stream.get_final_response()
    assert streamed.output_text == "hello"
    for one, other in zip(made.output, streamed.output, strict=True):
        own = {"id", "call_id", "parsed_arguments", "content"}  # of each request, or added by the client
        assert one.model_dump(exclude=own) == other.model_dump(exclude=own)


def test_a_response_echoes_tools_and_reasoning(http: httpx.Client) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    for chosen in ("none", "auto", choice):
        made = http.post(PATH, json={"input": "WRITEhi", "tools": TOOLS, "tool_choice": chosen}).json()
        assert made["tools"] == [{"type": "function", **TOOL, "strict": False}]
        assert made["tool_choice"] == chosen
        openai_document.check("Response", made)
    made = http.post(PATH, json={"input": "WRITEhi", "reasoning": {"effort": "low"}}).json()
    assert made["reasoning"] == {"effort": "low"}
    openai_document.check("Response", made)


def test_calls_and_reasoning_are_the_next_turn_s_input(client: openai.OpenAI) -> None:
    first = client.responses.create(model=NAME, input=WRITTEN, tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain WRITEok"}
    question: Any = {"role": "user", "content": WRITTEN}
    carried = client.responses.create(model=NAME, input=[result], tools=TOOLS, previous_response_id=first.id)
    objects: Any = [question, *first.output, result]
    dumped: Any = [question, *[item.model_dump() for item in first.output], result]
    given = [client.responses.create(model=NAME, input=turn, tools=TOOLS) for turn in (objects, dumped)]
    tokens = [turn.usage.input_tokens for turn in [carried, *given] if turn.usage]
    assert len(set(tokens)) == 1
    assert {turn.output_text for turn in [carried, *given]} == {"ok"}
    items = list(client.responses.input_items.list(carried.id, order="asc"))
    assert [item.type for item in items] == ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item.id for item in items[1:4]] == [item.id for item in first.output]
    assert items[3].call_id == items[4].call_id == call.call_id  # type: ignore[union-attr]


def test_a_call_with_half_of_a_surrogate_pair_is_the_next_turn_s_input(client: openai.OpenAI) -> None:
    written = WRITE + r'<tool_call>{"name": "weather", "arguments": {"city": "\ud83d"}}</tool_call>'
    first = client.responses.create(model=NAME, input=written, tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    assert call.arguments == r'{"city": "\ud83d"}'
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain WRITEok"}
    carried = client.responses.create(model=NAME, input=[result], tools=TOOLS, previous_response_id=first.id)
    turns: Any = [{"role": "user", "content": written}, call, result]
    given = client.responses.create(model=NAME, input=turns, tools=TOOLS)
    assert carried.output_text == given.output_text == "ok"


# --- messages ------------------------------------------------------------------------------------------------


def test_a_message_and_its_stream(stack: Stack) -> None:
    say: Any = [{"role": "user", "content": WRITTEN}]
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        made = client.messages.create(
            model=NAME,
            max_tokens=120,
            messages=say,
            tools=BLOCK_TOOLS,
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        assert made.usage.output_tokens_details is not None
        assert 0 < made.usage.output_tokens_details.thinking_tokens < made.usage.output_tokens
        with client.messages.stream(model=NAME, max_tokens=120, messages=say, tools=BLOCK_TOOLS) as stream:
            streamed = stream.get_final_message()
        assert [block.type for block in made.content] == ["thinking", "text", "tool_use"]
        assert made.content[2].input == json.loads(ARGUMENTS)  # type: ignore[union-attr]
        assert made.stop_reason == streamed.stop_reason == "tool_use"
        for one, other in zip(made.content, streamed.content, strict=True):
            assert one.to_dict().keys() == other.to_dict().keys()
            assert one.model_dump(exclude={"id"}) == other.model_dump(exclude={"id", "parsed_output"})
        result: Any = [{"type": "tool_result", "tool_use_id": made.content[2].id, "content": "rain WRITEok"}]  # type: ignore[union-attr]
        turns: Any = [*say, {"role": "assistant", "content": made.content}, {"role": "user", "content": result}]
        after = client.messages.create(model=NAME, max_tokens=9, messages=turns, tools=BLOCK_TOOLS)
        assert after.content[0].text == "ok"  # type: ignore[union-attr]
