"""LiteLLM's functions, with `openai/` and `hosted_vllm/` in front of the model."""

from __future__ import annotations

from typing import Any

import litellm
from examples import ASK, LENGTH, PARAMETERS, TOOLS, Report, check_call
from steps import API_KEY, BASE_URL, MODEL, QUESTION, URL, expect, raised, step

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SETTINGS: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0}
ASKED: list[Any] = [{"role": "user", "content": ASK}]
LONG = SETTINGS | {"max_tokens": LENGTH, "temperature": 0}


@step("completion")
def _() -> str:
    answer = litellm.completion(**SETTINGS, messages=MESSAGES, max_tokens=12, temperature=0)
    expect(answer.choices[0].message.content and answer.usage.completion_tokens > 0, answer)
    return str(answer.choices[0].message.content)


@step("completion stream with usage")
def _() -> None:
    options = {"include_usage": True}
    chunks = list(litellm.completion(**SETTINGS, messages=MESSAGES, max_tokens=12, stream=True, stream_options=options))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    expect(whole.choices[0].message.content and whole.usage.completion_tokens > 0, whole)


@step("hosted_vllm/")
def _() -> None:
    settings = SETTINGS | {"model": f"hosted_vllm/{MODEL}"}
    expect(litellm.completion(**settings, messages=MESSAGES, max_tokens=12).choices[0].message.content)


@step("acompletion")
async def _() -> None:
    answer = await litellm.acompletion(**SETTINGS, messages=MESSAGES, max_tokens=12, stream=True)
    expect([chunk async for chunk in answer])


@step("history of dumped answers")
def _() -> None:
    first = litellm.completion(**SETTINGS, messages=MESSAGES, max_tokens=8)
    for turn in (first.choices[0].message, first.choices[0].message.model_dump()):
        history = [*MESSAGES, turn, {"role": "user", "content": "And of Spain?"}]
        expect(litellm.completion(**SETTINGS, messages=history, max_tokens=8).choices)


@step("text_completion")
def _() -> None:
    settings = SETTINGS | {"model": f"text-completion-openai/{MODEL}"}
    expect(litellm.text_completion(**settings, prompt="Once upon a time", max_tokens=8).choices[0].text)


@step("responses and their stream")
def _() -> None:
    expect(litellm.responses(**SETTINGS, input=QUESTION, max_output_tokens=12).output)
    kinds = [event.type for event in litellm.responses(**SETTINGS, input=QUESTION, max_output_tokens=12, stream=True)]
    expect("response.completed" in kinds or "response.incomplete" in kinds, kinds)


@step("anthropic messages")
async def _() -> None:
    settings = SETTINGS | {"model": f"anthropic/{MODEL}", "api_base": URL}
    answer: Any = await litellm.anthropic.messages.acreate(**settings, messages=MESSAGES, max_tokens=12)
    expect(answer["content"][0]["text"], answer)


@step("errors as exceptions")
def _() -> None:
    for change, kind in (
        ({"model": "openai/nothing"}, litellm.NotFoundError),
        ({"temperature": 9}, litellm.BadRequestError),
    ):
        raised(kind, litellm.completion, **SETTINGS | change, messages=MESSAGES)


@step("response_format: a type, a stream, json_object")
def _() -> str:
    for prefix in ("openai", "hosted_vllm"):
        settings = LONG | {"model": f"{prefix}/{MODEL}", "messages": ASKED}
        answer = litellm.completion(**settings, response_format=Report)
        Report.model_validate_json(answer.choices[0].message.content)
        chunks = list(litellm.completion(**settings, response_format=Report, stream=True))
        whole = litellm.stream_chunk_builder(chunks, messages=ASKED)
        expect(whole.choices[0].message.content == answer.choices[0].message.content, whole, answer)
        object_ = litellm.completion(**settings | {"max_tokens": 30}, response_format={"type": "json_object"})
        expect(object_.choices[0].message.content.startswith("{"), object_)
    return str(answer.choices[0].message.content)


@step("tools, their stream, and a loop")
def _() -> None:
    for prefix in ("openai", "hosted_vllm"):
        settings = LONG | {"model": f"{prefix}/{MODEL}", "tools": TOOLS, "parallel_tool_calls": False}
        answer = litellm.completion(**settings, messages=ASKED, tool_choice="required")
        message = answer.choices[0].message
        (call,) = message.tool_calls
        check_call(call.function.name, call.function.arguments)
        expect(answer.choices[0].finish_reason == "tool_calls", answer)
        chunks = list(litellm.completion(**settings, messages=ASKED, tool_choice="required", stream=True))
        (streamed,) = litellm.stream_chunk_builder(chunks, messages=ASKED).choices[0].message.tool_calls
        expect(streamed.function == call.function, streamed, call)
        history = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        settings["max_tokens"] = 12
        expect(litellm.completion(**settings, messages=history, tool_choice="none").choices[0].message.content)


@step("responses with tools and text_format")
def _() -> None:
    tools = [{"type": "function"} | tool["function"] for tool in TOOLS]
    settings = LONG | {"input": ASK, "max_output_tokens": LENGTH}
    del settings["max_tokens"]
    (item,) = litellm.responses(**settings, tools=tools, tool_choice="required", parallel_tool_calls=False).output
    check_call(item.name, item.arguments)
    (message,) = litellm.responses(**settings, text_format=Report).output
    Report.model_validate_json(message.content[0].text)


@step("anthropic messages with tools, as they are and translated")
async def _() -> None:
    tools: Any = [{"name": "get_weather", "description": "the weather", "input_schema": PARAMETERS}]
    for model in (f"anthropic/{MODEL}", f"openai/{MODEL}"):
        settings = LONG | {"model": model, "api_base": URL if model.startswith("anthropic") else BASE_URL}
        answer: Any = await litellm.anthropic.messages.acreate(
            **settings, messages=ASKED, tools=tools, tool_choice={"type": "tool", "name": "get_weather"}
        )
        (block,) = answer["content"]
        check_call(block["name"], block["input"])
        expect(answer["stop_reason"] == "tool_use", answer)
