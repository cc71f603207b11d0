"""LlamaIndex's `OpenAILike`."""

from __future__ import annotations

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, QUESTION, STRUCTURED, TOOLS, expect, step

SETTINGS = {"model": MODEL, "api_base": BASE_URL, "api_key": API_KEY, "max_tokens": 12, "max_retries": 0}
chat = OpenAILike(**SETTINGS, is_chat_model=True)
plain = OpenAILike(**SETTINGS, is_chat_model=False)
MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]


class Capital(BaseModel):
    """A capital."""

    city: str


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
    try:
        OpenAILike(**SETTINGS | {"model": "nothing"}, is_chat_model=True).chat(MESSAGES)
    except openai.NotFoundError:
        return
    expect(False, "no error")


@step("structured_predict", needs=STRUCTURED)
def _() -> None:
    llm = OpenAILike(**SETTINGS | {"max_tokens": 60}, is_chat_model=True, should_use_structured_outputs=True)
    expect(isinstance(llm.as_structured_llm(Capital).chat(MESSAGES).raw, Capital))


@step("chat_with_tools", needs=TOOLS)
def _() -> None:
    llm = OpenAILike(**SETTINGS | {"max_tokens": 60}, is_chat_model=True, is_function_calling_model=True)
    weather = FunctionTool.from_defaults(lambda city: f"21 degrees in {city}", name="weather", description="weather")
    answer = llm.chat_with_tools([weather], user_msg=QUESTION, tool_required=True)
    expect(llm.get_tool_calls_from_response(answer), answer)
