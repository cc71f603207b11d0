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
from examples import ASK, LENGTH, Report, weather
from openai import AsyncOpenAI
from steps import API_KEY, BASE_URL, MODEL, QUESTION, expect, step

set_tracing_disabled(True)


look_up = function_tool(weather, name_override="look_up")


@function_tool
def other() -> str:
    """Nothing."""
    return ""


def client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)


def chat(name: str = MODEL) -> Model:
    return OpenAIChatCompletionsModel(name, client())


def responses() -> Model:
    return OpenAIResponsesModel(MODEL, client())


def agent(model: Model, max_tokens: int = 20, **more: object) -> Agent:
    settings = ModelSettings(max_tokens=max_tokens, temperature=0, include_usage=True)
    return Agent("assistant", instructions="Be brief.", model=model, model_settings=settings, **more)


def forced(model: Model, choice: str = "required", **more: object) -> Agent:
    """It calls a tool first; then the SDK resets the choice."""
    one = agent(model, 60, **more)
    one.model_settings.tool_choice, one.model_settings.parallel_tool_calls = choice, False
    return one


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


@step("output_type, whole and streamed")
async def _() -> str:
    for model in (chat(), responses()):
        result = await Runner.run(agent(model, LENGTH, output_type=Report), ASK)
        expect(isinstance(result.final_output, Report), result)
        streamed = Runner.run_streamed(agent(model, LENGTH, output_type=Report), ASK)
        expect([event async for event in streamed.stream_events()])
        expect(isinstance(streamed.final_output, Report), streamed)
    return str(result.final_output)


@step("function_tool: called, its result sent, then an answer")
async def _() -> None:
    for model in (chat(), responses()):
        result = await Runner.run(forced(model, tools=[look_up]), ASK, max_turns=4)
        kinds = [item.type for item in result.new_items]
        expect(kinds[:2] == ["tool_call_item", "tool_call_output_item"] and result.final_output, kinds)


@step("function_tool streamed, and by its name")
async def _() -> None:
    for model in (chat(), responses()):
        one = forced(model, "look_up", tools=[look_up, other], tool_use_behavior="stop_on_first_tool")
        streamed = Runner.run_streamed(one, ASK, max_turns=4)
        kinds = [event.item.type async for event in streamed.stream_events() if event.type == "run_item_stream_event"]
        expect(kinds == ["tool_call_item", "tool_call_output_item"], kinds)
        expect("days of rain" in streamed.final_output, streamed.final_output)


@step("handoff")
async def _() -> None:
    second = agent(chat())
    result = await Runner.run(forced(chat(), handoffs=[second]), ASK, max_turns=4)
    expect(result.last_agent is second and result.final_output, result)
