"""DSPy: signatures with types, whose outputs are constrained by a schema, and native calls of tools."""

from __future__ import annotations

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from examples import ASK, LENGTH, Report, Sky, check_call, weather
from steps import API_KEY, BASE_URL, MODEL, expect, step

# DSPy asks for a schema only where it is told that the model supports it
register_provider(
    ProviderDefinition.chat(AccessPolicy(provider="orca", base_url=BASE_URL), compat=OpenAIChatCompat()),
    supports=ModelSupport(function_calling=True, response_schema=True),
)
lm = dspy.LM(f"orca/{MODEL}", api_key=API_KEY, max_tokens=LENGTH, temperature=0.0, cache=False, num_retries=0)


class Forecast(dspy.Signature):
    """Say what the weather will be."""

    question: str = dspy.InputField()
    report: Report = dspy.OutputField()
    sky: Sky = dspy.OutputField()


class Calls(dspy.Signature):
    """Answer by calls of tools."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


@step("LM")
def _() -> str:
    expect(lm.supports_response_schema, "it would ask for json_object")
    return str(lm("Hello", max_tokens=8)[0])


@step("Predict with typed outputs")
def _() -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(Forecast)(question=ASK)
    expect(isinstance(answer.report, Report) and answer.sky in ("clear", "clouds"), answer)


@step("native calls of tools")
def _() -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(use_native_function_calling=True, parallel_tool_calls=False)):
        answer = dspy.Predict(Calls)(question=ASK, tools=[dspy.Tool(weather)], config={"tool_choice": "required"})
    for call in answer.calls.tool_calls:
        check_call(call.name, call.args)
    expect(answer.calls.tool_calls, answer)
