"""LiteLLM's functions, with `openai/` and `hosted_vllm/` in front of the model."""

from __future__ import annotations

from typing import Any

import litellm
from pydantic import BaseModel
from steps import API_KEY, BASE_URL, MODEL, QUESTION, STRUCTURED, TOOLS, URL, expect, step

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SETTINGS: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0}


class Capital(BaseModel):
    city: str


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
        try:
            litellm.completion(**SETTINGS | change, messages=MESSAGES)
        except kind:
            continue
        expect(False, "no error", kind)


@step("response_format", needs=STRUCTURED)
def _() -> None:
    answer = litellm.completion(**SETTINGS, messages=MESSAGES, response_format=Capital, max_tokens=60)
    Capital.model_validate_json(answer.choices[0].message.content)


@step("tools", needs=TOOLS)
def _() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    answer = litellm.completion(**SETTINGS, messages=MESSAGES, tools=tools, tool_choice="required", max_tokens=60)
    expect(answer.choices[0].message.tool_calls, answer)
