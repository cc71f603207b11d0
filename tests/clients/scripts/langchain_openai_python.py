"""LangChain's `ChatOpenAI` and `OpenAI`."""

from __future__ import annotations

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, QUESTION, STRUCTURED, TOOLS, expect, step

chat = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=12, max_retries=0, temperature=0)


class Capital(BaseModel):
    """A capital."""

    city: str


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"21 degrees in {city}"


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
    responses = ChatOpenAI(
        model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=12, max_retries=0, use_responses_api=True
    )
    expect(responses.invoke(QUESTION).content)
    expect(list(responses.stream(QUESTION)))


@step("completions")
def _() -> None:
    llm = OpenAI(model=MODEL, base_url=BASE_URL, api_key=API_KEY, max_tokens=12, max_retries=0)
    expect(llm.invoke("Once upon a time"))
    expect("".join(llm.stream("Once upon a time")))


@step("errors as exceptions")
def _() -> None:
    try:
        ChatOpenAI(model="nothing", base_url=BASE_URL, api_key=API_KEY, max_retries=0).invoke(QUESTION)
    except openai.NotFoundError:
        return
    expect(False, "no error")


@step("with_structured_output", needs=STRUCTURED)
def _() -> None:
    expect(isinstance(chat.with_structured_output(Capital).invoke(QUESTION), Capital))


@step("bind_tools", needs=TOOLS)
def _() -> None:
    expect(chat.bind_tools([weather], tool_choice="any").invoke(QUESTION, max_tokens=60).tool_calls)


@step("bind_tools with tool_choice none", needs=TOOLS)
def _() -> None:
    expect(chat.bind_tools([weather], tool_choice="none").invoke(QUESTION).content)
