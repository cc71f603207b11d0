"""Calls of tools by the official clients, unchanged, against a server that mocks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from load.server import OrcaServer

pytestmark = pytest.mark.cluster

ASK: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
LIMITS: Any = {"max_tokens": 60, "temperature": 0}


class Weather(BaseModel):
    """Small enough that any model ends it."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


@pytest.fixture
def client(server: OrcaServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_streamed_call_and_its_result(client: openai.OpenAI, model: str) -> None:
    tool: Any = openai.pydantic_function_tool(Weather)
    chunks = client.chat.completions.create(
        model=model,
        messages=ASK,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
        **LIMITS,
    )
    choices = [chunk.choices[0] for chunk in chunks]
    pieces: Any = [piece for choice in choices for piece in choice.delta.tool_calls or ()]
    arguments = "".join(piece.function.arguments or "" for piece in pieces)
    assert (choices[-1].finish_reason, pieces[0].function.name) == ("tool_calls", "Weather")
    weather = Weather.model_validate_json(arguments)
    call = {"id": pieces[0].id, "type": "function", "function": {"name": "Weather", "arguments": arguments}}
    turns: Any = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": pieces[0].id, "content": f"{weather.days} days of rain"},
    ]
    answer = client.chat.completions.parse(
        model=model, messages=turns, tools=[tool], tool_choice="none", response_format=Weather, **LIMITS
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_the_helper_for_streams_of_responses_parses_a_call(client: openai.OpenAI, model: str) -> None:
    tool: Any = openai.pydantic_function_tool(Weather)
    with client.responses.stream(
        model=model,
        input=ASK,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=60,
        temperature=0,
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (item,) = stream.get_final_response().output
    assert item.type == "function_call"
    assert isinstance(item.parsed_arguments, Weather)
    assert "".join(deltas) == item.arguments


def test_messages_with_a_forced_tool(server: OrcaServer, model: str) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(
            model=model,
            max_tokens=60,
            messages=ASK,
            tools=[{"name": "weather", "input_schema": Weather.model_json_schema()}],
            tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            extra_body={"temperature": 0},
        )
    (block,) = answer.content
    assert block.type == "tool_use"
    assert isinstance(Weather.model_validate(block.input), Weather)
    assert answer.stop_reason == "tool_use"
