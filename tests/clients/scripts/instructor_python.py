"""Instructor: types from answers, by its modes that constrain what the model writes."""

from __future__ import annotations

from typing import Any

import instructor
from examples import ASK, LENGTH, Report, Weather
from openai import AsyncOpenAI, OpenAI
from steps import API_KEY, BASE_URL, MODEL, expect, step

MESSAGES: list[Any] = [{"role": "user", "content": ASK}]
SETTINGS: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": LENGTH, "temperature": 0, "max_retries": 0}
MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0), mode=mode)


for mode in MODES:

    @step(f"create, {mode.name}")
    def _(mode: instructor.Mode = mode) -> str:
        answer = client(mode).chat.completions.create(**SETTINGS, response_model=Report)
        expect(isinstance(answer, Report), answer)
        return str(answer)

    @step(f"create_partial, {mode.name}")
    def _(mode: instructor.Mode = mode) -> None:
        parts = list(client(mode).chat.completions.create_partial(**SETTINGS, response_model=Report))
        Report.model_validate(parts[-1].model_dump())


@step("create_with_completion")
def _() -> None:
    answer, completion = client(MODES[0]).chat.completions.create_with_completion(**SETTINGS, response_model=Weather)
    expect(isinstance(answer, Weather) and completion.choices[0].message.tool_calls, completion)


@step("create_iterable")
def _() -> None:
    answers = client(MODES[0]).chat.completions.create_iterable(**SETTINGS, response_model=Weather)
    expect(all(isinstance(answer, Weather) for answer in answers))  # the list may be empty


@step("JSON")
def _() -> None:
    raw = client(instructor.Mode.JSON).chat.completions
    answer = raw.create(**SETTINGS | {"max_tokens": 30}, response_model=None, response_format={"type": "json_object"})
    expect(answer.choices[0].message.content.startswith("{"), answer)


@step("RESPONSES_TOOLS")
def _() -> None:
    settings: Any = {"model": MODEL, "input": ASK, "max_output_tokens": LENGTH, "max_retries": 0, "temperature": 0}
    answer = client(instructor.Mode.RESPONSES_TOOLS).responses.create(**settings, response_model=Report)
    expect(isinstance(answer, Report), answer)


@step("async client")
async def _() -> None:
    asynchronous = instructor.from_openai(AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0))
    expect(isinstance(await asynchronous.chat.completions.create(**SETTINGS, response_model=Report), Report))
