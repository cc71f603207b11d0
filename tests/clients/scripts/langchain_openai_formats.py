"""Forced calls in a family's own format by LangChain's `ChatOpenAI`."""

from __future__ import annotations

from examples import ASK, LENGTH, Weather, check_call, weather
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from steps import API_KEY, BASE_URL, BUDGET, MODEL, expect, step

FIELDS = {"model": MODEL, "base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0, "temperature": 0}
chat = ChatOpenAI(max_tokens=LENGTH, extra_body=BUDGET, **FIELDS)
bound = chat.bind_tools([tool(weather)], tool_choice="any", parallel_tool_calls=False)


@step("bind_tools")
def _() -> str:
    answer = bound.invoke(ASK)
    (call,) = answer.tool_calls
    expect(not answer.invalid_tool_calls, answer)
    check_call(call["name"], call["args"])
    return str(call)


@step("stream of tool calls")
def _() -> None:
    whole = None
    for chunk in bound.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    expect(whole and len(whole.tool_calls) == 1, whole)
    expect(whole.tool_calls[0]["args"] == bound.invoke(ASK).tool_calls[0]["args"], whole)


@step("a tool loop")
def _() -> None:
    first = bound.invoke(ASK)
    again = bound.invoke([HumanMessage(ASK), first, tool(weather).invoke(first.tool_calls[0])])
    check_call(again.tool_calls[0]["name"], again.tool_calls[0]["args"])


@step("with_structured_output by a tool")
def _() -> None:
    answer = chat.with_structured_output(Weather, method="function_calling").invoke(ASK)
    expect(isinstance(answer, Weather), answer)
