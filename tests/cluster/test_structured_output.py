"""Structured output of the real model through the official clients."""

from __future__ import annotations

import json
import re
from typing import Literal

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from load.server import OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

QUESTION = "Describe the capital of France as JSON."


class Place(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["city", "village"]
    population: int | None = Field(ge=0, le=100_000_000)
    tags: list[Literal["old", "large", "warm"]] = Field(max_length=2)


class Kind(BaseModel):  # few tokens, for what does not depend on the schema
    kind: Literal["city", "village"]
    capital: bool


@pytest.fixture(scope="module")
def client(server: OrcaServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_openai_parses_chat_completions_and_responses(client: openai.OpenAI, model: str) -> None:
    said: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.parse(model=model, messages=said, response_format=Kind, seed=1, n=2)
    assert all(isinstance(choice.message.parsed, Kind) for choice in chat.choices)
    assert {choice.finish_reason for choice in chat.choices} == {"stop"}
    response = client.responses.parse(model=model, input=QUESTION, text_format=Kind, temperature=0)
    assert response.status == "completed"
    assert isinstance(response.output_parsed, Kind)


def test_openai_streams_into_the_parsed_object(client: openai.OpenAI, model: str) -> None:
    said: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
    with client.chat.completions.stream(model=model, messages=said, response_format=Place, seed=2) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion().choices[0].message
    assert isinstance(final.parsed, Place)
    assert streamed == final.content


def test_anthropic_sends_a_schema(server: OrcaServer, model: str) -> None:
    """The client removes bounds from schemas, so the type has none."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.parse(
            model=model, max_tokens=60, messages=[{"role": "user", "content": QUESTION}], output_format=Kind
        )
    assert answer.stop_reason == "end_turn"
    assert isinstance(answer.parsed_output, Kind)


def test_fields_of_vllm(client: openai.OpenAI, model: str) -> None:
    def text(**constraint: object) -> str:
        answer = client.completions.create(
            model=model, prompt="The answer:", max_tokens=60, seed=3, extra_body={"structured_outputs": constraint}
        )
        assert answer.choices[0].finish_reason == "stop", answer
        return answer.choices[0].text

    assert text(choice=["red", "green"]) in ("red", "green")
    assert re.fullmatch(r"[A-C]{2}-\d{3}", text(regex=r"[A-C]{2}-\d{3}"))
    assert json.loads(text(json={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}))
    assert re.fullmatch(
        r"(yes|no)( and (yes|no)){0,2}", text(grammar='root ::= v (" and " v){0,2}\nv ::= "yes" | "no"')
    )
