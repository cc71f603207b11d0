"""Pydantic AI's agents over chat completions and over responses."""

from __future__ import annotations

from typing import Any

from examples import ASK, LENGTH, Place, Report, Weather, check_call, weather
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, Tool, ToolOutput, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from steps import API_KEY, BASE_URL, MODEL, QUESTION, expect, raised, step

provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)


def models() -> list[OpenAIChatModel | OpenAIResponsesModel]:
    """Both kinds, with a client of their own: one belongs to one event loop."""
    own = OpenAIProvider(openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0))
    return [OpenAIChatModel(MODEL, provider=own), OpenAIResponsesModel(MODEL, provider=own)]


SETTINGS: Any = {"max_tokens": 12, "temperature": 0.0}
LONG: Any = {"max_tokens": LENGTH, "temperature": 0.0, "parallel_tool_calls": False}


class ForcedOnce(AbstractCapability[None]):
    """Forces a call in the first step of a run, and none in the next."""

    def get_model_settings(self) -> Any:
        return lambda context: {"tool_choice": "none" if context.run_step > 1 else "required"}


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
    nothing: Any = Agent(OpenAIChatModel("nothing", provider=provider))
    error = raised(ModelHTTPError, lambda: nothing.run_sync(QUESTION))
    expect(error.status_code == 404, error)


@step("output_type: native, by a tool, prompted; as a stream")
async def _() -> str:
    for model in models():
        for output in (NativeOutput(Report), ToolOutput(Report), Report):
            result = await Agent(model, output_type=output).run(ASK, model_settings=LONG)
            expect(isinstance(result.output, Report), result)
            async with Agent(model, output_type=output).run_stream(ASK, model_settings=LONG) as stream:
                expect([part async for part in stream.stream_output()])
                expect(isinstance(await stream.get_output(), Report))
    return str(result.output)


@step("output_type of several types")
def _() -> None:
    agent = Agent(chat, output_type=[ToolOutput(Weather, name="days"), ToolOutput(Place, name="place")])
    expect(isinstance(agent.run_sync(ASK, model_settings=LONG).output, Weather | Place))


@step("a forced call of a tool")
async def _() -> None:
    for model in models():
        parameters = ModelRequestParameters(function_tools=[Tool(weather).tool_def])
        question = [ModelRequest.user_text_prompt(ASK)]
        for choice in ("required", ["weather"]):
            answer = await model_request(
                model, question, model_settings=LONG | {"tool_choice": choice}, model_request_parameters=parameters
            )
            (call,) = answer.tool_calls
            check_call(call.tool_name, call.args_as_dict())


@step("an agent with a tool: called, its result sent, then an answer")
async def _() -> None:
    for model in models():
        agent = Agent(model, tools=[weather], capabilities=[ForcedOnce()])
        result = await agent.run(
            ASK, model_settings=LONG | {"max_tokens": 60}, usage_limits=UsageLimits(request_limit=4)
        )
        kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
        expect("tool-call" in kinds and "tool-return" in kinds and result.output, kinds)
