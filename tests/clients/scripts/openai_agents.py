"""OpenAI's Agents SDK over chat completions and over responses."""

from __future__ import annotations

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, QUESTION, STRUCTURED, TOOLS, expect, step

set_tracing_disabled(True)


class Capital(BaseModel):
    city: str


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


def client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def chat(name: str = MODEL) -> Model:
    return OpenAIChatCompletionsModel(name, client())


def responses() -> Model:
    return OpenAIResponsesModel(MODEL, client())


def agent(model: Model, max_tokens: int = 20, **more: object) -> Agent:
    settings = ModelSettings(max_tokens=max_tokens, temperature=0, include_usage=True)
    return Agent("assistant", instructions="Be brief.", model=model, model_settings=settings, **more)


@step("run")
async def _() -> str:
    result = await Runner.run(agent(chat()), QUESTION)
    expect(result.final_output and result.context_wrapper.usage.output_tokens > 0, result)
    return str(result.final_output)


@step("run_streamed")
async def _() -> None:
    result = Runner.run_streamed(agent(chat()), QUESTION)
    kinds = {event.type async for event in result.stream_events()}
    expect("raw_response_event" in kinds and result.final_output, kinds)


@step("session")
async def _() -> None:
    session = SQLiteSession("one")
    await Runner.run(agent(chat()), QUESTION, session=session)
    expect((await Runner.run(agent(chat()), "And of Spain?", session=session)).final_output)


@step("responses: run, run_streamed, session")
async def _() -> None:
    session = SQLiteSession("two")
    expect((await Runner.run(agent(responses()), QUESTION, session=session)).final_output)
    result = Runner.run_streamed(agent(responses()), "And of Spain?", session=session)
    expect([event async for event in result.stream_events()])
    expect(result.final_output, result)


@step("errors as exceptions")
async def _() -> None:
    try:
        await Runner.run(agent(chat("nothing")), QUESTION)
    except openai.NotFoundError:
        return
    expect(False, "no error")


@step("output_type", needs=STRUCTURED)
async def _() -> None:
    expect(isinstance((await Runner.run(agent(chat(), 60, output_type=Capital), QUESTION)).final_output, Capital))


@step("function_tool", needs=TOOLS)
async def _() -> None:
    result = await Runner.run(agent(chat(), 60, tools=[weather]), "What is the weather in Paris?")
    expect(result.final_output, result)
