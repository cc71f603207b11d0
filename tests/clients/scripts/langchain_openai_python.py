"""LangChain's `ChatOpenAI` and `OpenAI`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import openai
from examples import ASK, LENGTH, PARAMETERS, City, Report, Weather, check_call, weather
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from steps import API_KEY, BASE_URL, MODEL, QUESTION, expect, raised, step


def model(max_tokens: int, **more: Any) -> ChatOpenAI:
    fields = {"model": MODEL, "base_url": BASE_URL, "api_key": API_KEY, "max_retries": 0, "temperature": 0}
    return ChatOpenAI(max_tokens=max_tokens, **fields | more)


chat, long = model(12), model(LENGTH)


class Asked(TypedDict):
    """The weather of a city."""

    city: City
    days: Literal[1, 2, 3]


@step("invoke")
def _() -> str:
    answer = chat.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    expect(answer.content and answer.usage_metadata and answer.usage_metadata["output_tokens"] > 0, answer)
    return str(answer.content)


@step("stream with usage")
def _() -> None:
    whole = None
    for chunk in chat.stream(QUESTION, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    expect(whole and whole.content and whole.usage_metadata["output_tokens"] > 0, whole)


@step("batch")
def _() -> None:
    expect(all(answer.content for answer in chat.batch([QUESTION, "And of Spain?"])))


@step("ainvoke and astream")
async def _() -> None:
    expect((await chat.ainvoke(QUESTION)).content)
    expect([chunk async for chunk in chat.astream(QUESTION)])


@step("history")
def _() -> None:
    first = chat.invoke(QUESTION)
    expect(chat.invoke([HumanMessage(QUESTION), first, HumanMessage("And of Spain?")]).content)


@step("history with tool calls and results")
def _() -> None:
    call = {"name": "weather", "args": {"city": "Paris"}, "id": "call_1"}
    messages = [
        HumanMessage(QUESTION),
        AIMessage("", tool_calls=[call]),
        ToolMessage("21 degrees", tool_call_id="call_1"),
    ]
    expect(isinstance(chat.invoke(messages).content, str))


@step("logprobs")
def _() -> None:
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    expect(answer.response_metadata["logprobs"]["content"], answer)


@step("responses API")
def _() -> None:
    responses = model(12, use_responses_api=True)
    expect(responses.invoke(QUESTION).content)
    expect(list(responses.stream(QUESTION)))


@step("completions")
def _() -> None:
    llm = OpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=12, max_retries=0)
    expect(llm.invoke("Once upon a time"))
    expect("".join(llm.stream("Once upon a time")))


@step("errors as exceptions")
def _() -> None:
    nothing = ChatOpenAI(model="nothing", base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    raised(openai.NotFoundError, lambda: nothing.invoke(QUESTION))


@step("with_structured_output: json_schema, function_calling, json_mode")
def _() -> str:
    expect(isinstance(long.with_structured_output(Report).invoke(ASK), Report))
    expect(isinstance(long.with_structured_output(Report, strict=True).invoke(ASK), Report))
    answer = long.with_structured_output(Weather, method="function_calling").invoke(ASK)
    expect(isinstance(answer, Weather), answer)
    strict = long.with_structured_output(Weather, method="function_calling", strict=True, include_raw=True).invoke(ASK)
    expect(isinstance(strict["parsed"], Weather) and not strict["parsing_error"], strict)
    said = chat.with_structured_output(None, method="json_mode", include_raw=True).invoke('{"city": "Rome"} as JSON')
    expect(said["raw"].content.startswith("{"), said)
    return str(answer)


@step("with_structured_output of a JSON schema, of a TypedDict, as a stream")
def _() -> None:
    schema = {"title": "weather", "description": "the weather", **PARAMETERS}
    for method in ("json_schema", "function_calling"):
        check_call("weather", long.with_structured_output(schema, method=method).invoke(ASK))
    check_call("weather", long.with_structured_output(Asked).invoke(ASK))
    parts = list(long.with_structured_output(Report).stream(ASK))
    expect(isinstance(parts[-1], Report), parts)


@step("bind_tools: any, with a name, none, auto")
def _() -> None:
    for choice in ("any", "required", "weather", True):
        answer = long.bind_tools([tool(weather)], tool_choice=choice, parallel_tool_calls=False).invoke(ASK)
        (call,) = answer.tool_calls
        expect(not answer.invalid_tool_calls and call["id"], answer)
        check_call(call["name"], call["args"])
    expect(chat.bind_tools([tool(weather)], tool_choice="none").invoke(ASK).content)
    chat.bind_tools([tool(weather)], strict=True).invoke(ASK)


@step("stream of tool calls")
def _() -> None:
    bound = long.bind_tools([tool(weather)], tool_choice="any", parallel_tool_calls=False)
    whole = None
    for chunk in bound.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    expect(whole and len(whole.tool_calls) == 1 and len(whole.tool_call_chunks) == 1, whole)
    check_call(whole.tool_calls[0]["name"], whole.tool_calls[0]["args"])
    expect(whole.tool_calls[0]["args"] == bound.invoke(ASK).tool_calls[0]["args"], whole)


@step("a tool loop")
def _() -> str:
    question = HumanMessage(ASK)
    first = long.bind_tools([tool(weather)], tool_choice="any", parallel_tool_calls=False).invoke([question])
    result = tool(weather).invoke(first.tool_calls[0])
    expect(isinstance(result, ToolMessage), result)
    last = chat.bind_tools([tool(weather)], tool_choice="none").invoke([question, first, result])
    expect(last.content, last)
    return str(last.content)


@step("responses API: with_structured_output, bind_tools, a tool loop")
def _() -> None:
    responses = model(LENGTH, use_responses_api=True)
    expect(isinstance(responses.with_structured_output(Report).invoke(ASK), Report))
    expect(isinstance(responses.with_structured_output(Weather, method="function_calling").invoke(ASK), Weather))
    bound = responses.bind_tools([tool(weather)], tool_choice="any", parallel_tool_calls=False)
    first = bound.invoke(ASK)
    check_call(first.tool_calls[0]["name"], first.tool_calls[0]["args"])
    whole = None
    for chunk in bound.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    expect(whole.tool_calls[0]["args"] == first.tool_calls[0]["args"], whole, first)
    result = tool(weather).invoke(first.tool_calls[0])
    expect(responses.bind(max_tokens=12).invoke([HumanMessage(ASK), first, result]).content)


@step("create_agent with a type: by response_format, and by a tool")
def _() -> None:
    messages = {"messages": [{"role": "user", "content": ASK}]}
    for strategy in (ProviderStrategy(Report), ToolStrategy(Report)):
        agent = create_agent(long, tools=[], response_format=strategy)
        expect(isinstance(agent.invoke(messages)["structured_response"], Report))
