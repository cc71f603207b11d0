"""Structured output and calls of tools of the real model, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

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


def test_a_document_of_each_choice_is_parsed(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(messages=ASK, response_format=Weather, seed=1, n=2, **named(client))
    assert all(isinstance(choice.message.parsed, Weather) for choice in chat.choices)
    assert {choice.finish_reason for choice in chat.choices} == {"stop"}


def test_a_streamed_call_and_its_result(client: openai.OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(Weather)
    fields: Any = {"tools": [tool], **LIMITS, **named(client)}
    forced: Any = {"tool_choice": "required", "parallel_tool_calls": False, "stream": True}
    choices = [chunk.choices[0] for chunk in client.chat.completions.create(messages=ASK, **forced, **fields)]
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
    answer = client.chat.completions.parse(messages=turns, tool_choice="none", response_format=Weather, **fields)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def named(client: openai.OpenAI) -> dict[str, Any]:
    return {"model": client.models.list().data[0].id}
