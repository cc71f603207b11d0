"""Forced calls in a family's own format, and its reasoning, by the official package for Python."""

from __future__ import annotations

from typing import Any

from examples import ASK, CLOCK_PARAMETERS, LENGTH, NAMED, PARAMETERS, TOOLS, check_call
from openai import OpenAI
from steps import API_KEY, BASE_URL, BUDGET, MODEL, REASONS, expect, step

client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": ASK}]
SHARED: Any = {"model": MODEL, "temperature": 0, "parallel_tool_calls": False, "extra_body": BUDGET}
FLAT: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True},
    {"type": "function", "name": "get_time", "parameters": CLOCK_PARAMETERS, "strict": True},
]


def create(choice: Any = "required", **more: Any) -> Any:
    fields = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": LENGTH}
    return client.chat.completions.create(**SHARED | fields | more)


def respond(choice: Any = "required", **more: Any) -> Any:
    fields = {"input": ASK, "tools": FLAT, "tool_choice": choice, "max_output_tokens": LENGTH}
    return client.responses.create(**SHARED | fields | more)


def check(answer: Any) -> Any:
    (choice,) = answer.choices
    expect(choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == 1, answer)
    call = choice.message.tool_calls[0]
    check_call(call.function.name, call.function.arguments)
    expect(REASONS != "must" or choice.message.reasoning_content, answer)
    return choice.message


@step("chat: required, and with a name")
def _() -> str:
    check(create())
    return str(check(create(NAMED)).tool_calls[0].function)


@step("chat: a stream is the answer as a whole")
def _() -> None:
    whole = check(create())
    deltas = [chunk.choices[0].delta for chunk in create(stream=True) if chunk.choices]
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    called = whole.tool_calls[0].function
    expect(pieces[0].function.name == called.name, pieces)
    expect("".join(piece.function.arguments or "" for piece in pieces) == called.arguments, pieces, called)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    expect(reasoning == (getattr(whole, "reasoning_content", None) or ""), reasoning, whole)


@step("chat: a call and its result in the history")
def _() -> None:
    message = check(create(NAMED))
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    check(create(messages=[*MESSAGES, message, result]))


@step("responses: a call, its stream, and its result in the history")
def _() -> None:
    whole = respond().output[-1]
    check_call(whole.name, whole.arguments)
    made = list(respond(stream=True))[-1].response
    expect((made.output[-1].name, made.output[-1].arguments) == (whole.name, whole.arguments), made, whole)
    expect(REASONS != "must" or made.output[0].type == "reasoning", made)
    result = {"type": "function_call_output", "call_id": made.output[-1].call_id, "output": "sunny"}
    last = respond(input=[result], previous_response_id=made.id).output[-1]
    check_call(last.name, last.arguments)
