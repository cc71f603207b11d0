"""Forced calls in a family's own format, and its reasoning, by Pydantic AI, over chat and responses."""

from __future__ import annotations

from typing import Any

from examples import ASK, LENGTH, Report, check_call, weather
from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, ToolOutput
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from steps import API_KEY, BASE_URL, BUDGET, MODEL, REASONS, expect, step

# marks around each parameter, as DeepSeek's, are many tokens for a tokenizer that does not know them
SETTINGS: Any = {"max_tokens": 2 * LENGTH, "temperature": 0.0, "parallel_tool_calls": False, "extra_body": BUDGET}


def models() -> list[OpenAIChatModel | OpenAIResponsesModel]:
    """Both kinds, with a client of their own: one belongs to one event loop."""
    own = OpenAIProvider(openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0))
    return [OpenAIChatModel(MODEL, provider=own), OpenAIResponsesModel(MODEL, provider=own)]


@step("a forced call, and another after its result")
async def _() -> None:
    parameters = ModelRequestParameters(function_tools=[Tool(weather).tool_def])
    for model in models():
        history: list[Any] = [ModelRequest.user_text_prompt(ASK)]
        for _ in range(2):
            answer = await model_request(
                model,
                history,
                model_settings=SETTINGS | {"tool_choice": "required"},
                model_request_parameters=parameters,
            )
            (call,) = answer.tool_calls
            check_call(call.tool_name, call.args_as_dict())
            expect(REASONS != "must" or answer.parts[0].part_kind == "thinking", answer)
            history += [answer, ModelRequest([ToolReturnPart(call.tool_name, "sunny", call.tool_call_id)])]


@step("output_type by a tool, and its stream")
async def _() -> str:
    for model in models():
        agent = Agent(model, output_type=ToolOutput(Report))
        result = await agent.run(ASK, model_settings=SETTINGS)
        expect(isinstance(result.output, Report), result)
        async with agent.run_stream(ASK, model_settings=SETTINGS) as stream:
            expect(isinstance(await stream.get_output(), Report))
    return str(result.output)
