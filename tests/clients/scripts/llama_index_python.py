"""LlamaIndex's `OpenAILike`."""

from __future__ import annotations

from typing import Any

import openai
from examples import ASK, LENGTH, Report, Weather, check_call, weather
from llama_index.core import PromptTemplate
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from steps import API_KEY, BASE_URL, MODEL, QUESTION, expect, raised, step

SETTINGS = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "max_tokens": 12, "max_retries": 0}
chat = OpenAILike(**SETTINGS, is_chat_model=True)
plain = OpenAILike(**SETTINGS, is_chat_model=False)
MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]


def like(**more: Any) -> OpenAILike:
    return OpenAILike(**SETTINGS | {"max_tokens": LENGTH, "temperature": 0}, is_chat_model=True, **more)


@step("chat")
def _() -> str | None:
    answer = chat.chat(MESSAGES)
    expect(answer.message.content, answer)
    return answer.message.content


@step("stream_chat")
def _() -> None:
    expect("".join(part.delta or "" for part in chat.stream_chat(MESSAGES)))


@step("complete and stream_complete")
def _() -> None:
    expect(plain.complete("Once upon a time").text)
    expect("".join(part.delta or "" for part in plain.stream_complete("Once upon a time")))


@step("achat and astream_chat")
async def _() -> None:
    expect((await chat.achat(MESSAGES)).message.content)
    expect([part async for part in await chat.astream_chat(MESSAGES)])


@step("history")
def _() -> None:
    first = chat.chat(MESSAGES)
    second = chat.chat([*MESSAGES, first.message, ChatMessage(role="user", content="And of Spain?")])
    expect(second.message.content, second)


@step("errors as exceptions")
def _() -> None:
    nothing = OpenAILike(**SETTINGS | {"model": "nothing"}, is_chat_model=True)
    raised(openai.NotFoundError, nothing.chat, messages=MESSAGES)


@step("structured output by response_format")
def _() -> None:
    llm = like(should_use_structured_outputs=True)
    expect(isinstance(llm.as_structured_llm(Report).chat(MESSAGES).raw, Report))
    parts = list(llm.as_structured_llm(Report).stream_chat(MESSAGES))
    expect(isinstance(parts[-1].raw, Report), parts)


@step("structured_predict by a tool, and its stream")
async def _() -> None:
    llm = like(is_function_calling_model=True)
    prompt = PromptTemplate("{question}")
    expect(isinstance(llm.structured_predict(Weather, prompt, question=ASK), Weather))
    expect(isinstance(await llm.astructured_predict(Weather, prompt, question=ASK), Weather))
    # its stream leaves the choice to the model
    expect(list(llm.stream_structured_predict(Weather, prompt, question=ASK)))


@step("chat_with_tools, its stream, and a tool loop")
def _() -> None:
    llm = like(is_function_calling_model=True)
    tool = FunctionTool.from_defaults(weather)
    answer = llm.chat_with_tools([tool], user_msg=ASK, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    check_call(call.tool_name, call.tool_kwargs)
    *_, last = llm.stream_chat_with_tools([tool], user_msg=ASK, tool_required=True)
    (streamed,) = llm.get_tool_calls_from_response(last)
    expect(streamed.tool_kwargs == call.tool_kwargs, streamed, call)
    result = ChatMessage(role="tool", content=tool.call(**call.tool_kwargs).content)
    result.additional_kwargs["tool_call_id"] = call.tool_id
    history = [ChatMessage(role="user", content=ASK), answer.message, result]
    expect(llm.chat_with_tools([tool], chat_history=history, tool_choice="none", max_tokens=12).message.content)


@step("predict_and_call")
def _() -> None:
    tools = [FunctionTool.from_defaults(weather)]
    answer = like(is_function_calling_model=True).predict_and_call(tools, user_msg=ASK, error_on_no_tool_call=False)
    expect(answer.sources or answer.response, answer)
