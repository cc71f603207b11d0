"""Pydantic AI's agents over chat completions and over responses."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from steps import API_KEY, BASE_URL, MODEL, QUESTION, STRUCTURED, TOOLS, expect, step

provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)
SETTINGS = {"max_tokens": 12, "temperature": 0.0}


class Capital(BaseModel):
    """A capital."""

    city: str


@step("run")
def _() -> str:
    result = Agent(chat, instructions="Be brief.").run_sync(QUESTION, model_settings=SETTINGS)
    expect(result.output and result.usage.output_tokens > 0, result)
    return str(result.output)


@step("run_stream")
async def _() -> None:
    async with Agent(chat).run_stream(QUESTION, model_settings=SETTINGS) as result:
        expect([text async for text in result.stream_text(delta=True)])
        expect(result.usage.output_tokens > 0, result.usage)


@step("message history")
def _() -> None:
    agent = Agent(chat)
    first = agent.run_sync(QUESTION, model_settings=SETTINGS)
    second = agent.run_sync("And of Spain?", message_history=first.all_messages(), model_settings=SETTINGS)
    expect(second.output, second)


@step("responses: run, run_stream, history")
async def _() -> None:
    agent = Agent(responses, instructions="Be brief.")
    settings = {"max_tokens": 20}
    first = await agent.run(QUESTION, model_settings=settings)
    expect(first.output, first)
    expect((await agent.run("Why?", message_history=first.all_messages(), model_settings=settings)).output)
    async with agent.run_stream(QUESTION, model_settings=settings) as result:
        expect([text async for text in result.stream_text(delta=True)])


@step("errors as exceptions")
def _() -> None:
    try:
        Agent(OpenAIChatModel("nothing", provider=provider)).run_sync(QUESTION)
    except ModelHTTPError as error:
        expect(error.status_code == 404, error)
        return
    expect(False, "no error")


@step("native output_type", needs=STRUCTURED)
def _() -> None:
    agent = Agent(chat, output_type=NativeOutput(Capital))
    expect(isinstance(agent.run_sync(QUESTION, model_settings={"max_tokens": 60}).output, Capital))


@step("output_type by a tool", needs=TOOLS)
def _() -> None:
    agent = Agent(chat, output_type=Capital)
    expect(isinstance(agent.run_sync(QUESTION, model_settings={"max_tokens": 60}).output, Capital))


@step("tools", needs=TOOLS)
def _() -> None:
    agent = Agent(chat)

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"21 degrees in {city}"

    expect(agent.run_sync("What is the weather in Paris?", model_settings={"max_tokens": 60}).output)
