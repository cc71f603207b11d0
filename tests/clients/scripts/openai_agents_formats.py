"""Forced calls in a family's own format by OpenAI's Agents SDK, over chat and responses."""

from __future__ import annotations

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from examples import ASK, LENGTH, weather
from openai import AsyncOpenAI
from steps import API_KEY, BASE_URL, BUDGET, MODEL, expect, step

set_tracing_disabled(True)


def forced(model: Model) -> Agent:
    """It calls its tool, whose result is then the output."""
    settings = ModelSettings(
        max_tokens=LENGTH, temperature=0, tool_choice="required", parallel_tool_calls=False, extra_body=BUDGET
    )
    tools = [function_tool(weather)]
    return Agent("assistant", model=model, model_settings=settings, tools=tools, tool_use_behavior="stop_on_first_tool")


def models() -> list[Model]:
    own = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    return [OpenAIChatCompletionsModel(MODEL, own), OpenAIResponsesModel(MODEL, own)]


@step("run")
async def _() -> str:
    for model in models():
        result = await Runner.run(forced(model), ASK)
        expect("days of rain in" in result.final_output, result)
    return str(result.final_output)


@step("run_streamed")
async def _() -> None:
    for model in models():
        result = Runner.run_streamed(forced(model), ASK)
        kinds = [event.type async for event in result.stream_events()]
        expect("run_item_stream_event" in kinds and "days of rain in" in result.final_output, kinds)


@step("a call and its result in the history")
async def _() -> None:
    for model in models():
        first = await Runner.run(forced(model), ASK)
        again = await Runner.run(forced(model), first.to_input_list())
        expect("days of rain in" in again.final_output, again)
