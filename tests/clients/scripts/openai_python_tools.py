"""Tools by the official package for Python: chat completions, responses, their streams and helpers."""

from __future__ import annotations

import json
from typing import Any

import openai
from examples import ASK, CLOCK_PARAMETERS, LENGTH, NAMED, PARAMETERS, TOOLS, Weather, check_call, function, weather
from openai import OpenAI
from openai.types.responses import ResponseFunctionToolCall
from steps import API_KEY, BASE_URL, MODEL, expect, raised, step

client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": ASK}]
FLAT: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True},
    {"type": "function", "name": "get_time", "parameters": CLOCK_PARAMETERS, "strict": False},
]


def create(**more: Any) -> Any:
    fields = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": LENGTH, "temperature": 1, "seed": 5}
    return client.chat.completions.create(**fields | {"parallel_tool_calls": False} | more)


def respond(**more: Any) -> Any:
    fields = {"model": MODEL, "input": ASK, "tools": FLAT, "max_output_tokens": LENGTH, "temperature": 0}
    return client.responses.create(**fields | {"parallel_tool_calls": False} | more)


def check(answer: Any) -> Any:
    """Raises unless the answer is one valid call; returns its message."""
    choice = answer.choices[0]
    expect(choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == 1, answer)
    call = choice.message.tool_calls[0]
    expect(call.type == "function" and call.id.startswith("call_"), call)
    check_call(call.function.name, call.function.arguments)
    return choice.message


@step("tool_choice required")
def _() -> str:
    return str(check(create(tool_choice="required")).tool_calls[0].function)


@step("tool_choice with a name")
def _() -> None:
    expect(check(create(tool_choice=NAMED)).tool_calls[0].function.name == "get_weather")


@step("tool_choice none and auto")
def _() -> None:
    none = create(tool_choice="none", max_tokens=12)
    expect(none.choices[0].message.content and not none.choices[0].message.tool_calls, none)
    strict = [function("get_weather", PARAMETERS, strict=True)]
    auto = create(tools=strict, temperature=0, max_tokens=40)
    if auto.choices[0].message.tool_calls and auto.choices[0].finish_reason != "length":
        check(auto)
    else:
        expect(auto.choices[0].message.content, auto)


@step("parallel calls")
def _() -> None:
    choice = create(tool_choice="required", parallel_tool_calls=True, max_tokens=400).choices[0]
    calls = choice.message.tool_calls
    expect(calls and len({call.id for call in calls}) == len(calls), calls)
    for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
        check_call(call.function.name, call.function.arguments)


@step("n choices, each with a call of its own id")
def _() -> None:
    answer = create(tool_choice="required", n=2)
    calls = [call for choice in answer.choices for call in choice.message.tool_calls]
    expect(len({call.id for call in calls}) == 2, answer)
    for call in calls:
        check_call(call.function.name, call.function.arguments)


@step("a stream is the answer as a whole")
def _() -> None:
    whole = check(create(tool_choice="required"))
    chunks = [chunk.choices[0] for chunk in create(tool_choice="required", stream=True) if chunk.choices]
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or ()]
    called = whole.tool_calls[0].function
    expect(pieces[0].function.name == called.name and pieces[0].id and pieces[0].type == "function", pieces)
    expect(all(piece.index == 0 for piece in pieces) and not any(piece.id for piece in pieces[1:]), pieces)
    expect("".join(piece.function.arguments or "" for piece in pieces) == called.arguments, pieces, called)
    expect(not any(chunk.delta.content for chunk in chunks), pieces)
    expect(chunks[-1].finish_reason == "tool_calls", chunks[-1])


TYPED: Any = {
    "model": MODEL,
    "messages": MESSAGES,
    "tools": [openai.pydantic_function_tool(Weather)],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": LENGTH,
}


@step("chat.completions.parse with a type as tool")
def _() -> None:
    answer = client.chat.completions.parse(**TYPED)
    calls = answer.choices[0].message.tool_calls
    expect(calls and isinstance(calls[0].function.parsed_arguments, Weather), answer)


@step("chat.completions.stream with a type as tool")
def _() -> None:
    with client.chat.completions.stream(**TYPED) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    expect(len(done) == 1 and isinstance(done[0].parsed_arguments, Weather), done)
    expect("".join(event.arguments_delta for event in deltas) == done[0].arguments, deltas, done)
    expect(isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Weather), final)


@step("a tool loop")
def _() -> str:
    message = check(create(tool_choice=NAMED))
    call = message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": weather(**json.loads(call.function.arguments))}
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        answer = create(messages=[*MESSAGES, turn, result], tool_choice="none", max_tokens=20, temperature=0)
        expect(answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length"), answer)
    again = create(messages=[*MESSAGES, message, result], tool_choice="required")
    expect(check(again).tool_calls[0].id != call.id, again)
    return answer.choices[0].message.content


@step("response_format beside tools")
def _() -> None:
    format = {"type": "json_schema", "json_schema": {"name": "weather", "schema": PARAMETERS}}
    answer = create(response_format=format, tool_choice="none")
    check_call("weather", answer.choices[0].message.content)
    check(create(response_format=format, tool_choice="required"))


@step("chat_template_kwargs")
def _() -> None:
    answer = create(tool_choice="required", extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    check(answer)


@step("responses: tool_choice required, with a name, none")
def _() -> None:
    named: Any = {"type": "function", "name": "get_time"}
    for choice, names in (("required", {"get_weather", "get_time"}), (named, {"get_time"})):
        (item,) = respond(tool_choice=choice).output
        expect(isinstance(item, ResponseFunctionToolCall) and item.name in names, item)
        expect(item.call_id.startswith("call_") and item.id and item.status == "completed", item)
        check_call(item.name, item.arguments)
    expect(respond(tool_choice="none", max_output_tokens=12).output_text)


@step("responses: a tool loop by previous_response_id and by input")
def _() -> None:
    first = respond(tool_choice="required")
    (item,) = first.output
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    more: Any = {"tool_choice": "none", "max_output_tokens": 16}
    linked = respond(input=[result], previous_response_id=first.id, **more)
    for turn in (item, item.model_dump(exclude_none=True)):
        listed = respond(input=[{"role": "user", "content": ASK}, turn, result], **more)
        expect(linked.output_text and listed.output_text == linked.output_text, linked, listed)
    kinds = {one.type for one in client.responses.input_items.list(linked.id)}
    expect("function_call_output" in kinds, kinds)


@step("responses.stream with tools")
def _() -> None:
    with client.responses.stream(
        model=MODEL,
        input=ASK,
        tools=[openai.pydantic_function_tool(Weather)],  # the helper takes both shapes
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=LENGTH,
        temperature=0,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    (item,) = final.output
    expect(item.type == "function_call" and isinstance(item.parsed_arguments, Weather), item)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    expect("".join(deltas) == item.arguments == done[0].arguments, deltas, done)
    kinds = [event.type for event in events]
    expect("response.output_item.added" in kinds and "response.output_item.done" in kinds, kinds)


@step("responses: a stream is the answer as a whole")
def _() -> None:
    (whole,) = respond(tool_choice="required").output
    events = list(respond(tool_choice="required", stream=True))
    expect([event.sequence_number for event in events] == sorted({event.sequence_number for event in events}))
    (item,) = events[-1].response.output
    expect((item.name, item.arguments) == (whole.name, whole.arguments), item, whole)


@step("responses in the background")
def _() -> None:
    job = respond(tool_choice="required", background=True)
    while job.status in ("queued", "in_progress"):
        job = client.responses.retrieve(job.id)
    (item,) = job.output
    check_call(item.name, item.arguments)


@step("custom tools: chat and its stream, responses and their stream, a tool loop")
def _() -> str:
    syntax = {"syntax": "regex", "definition": "[a-z]{3,12}( [a-z]{3,12}){0,3}"}
    nested: Any = {"name": "note", "description": "Note a text.", "format": {"type": "grammar", "grammar": syntax}}
    flat: Any = [{"type": "custom", **nested, "format": {"type": "grammar", **syntax}}]
    forced: Any = {"tools": [{"type": "custom", "custom": nested}], "tool_choice": "required", "temperature": 0}
    message = create(**forced).choices[0].message
    (call,) = message.tool_calls
    expect(call.type == "custom" and call.custom.name == "note" and call.custom.input, call)
    pieces = [
        piece.to_dict()["custom"]["input"]
        for chunk in create(**forced, stream=True)
        for piece in (chunk.choices[0].delta.tool_calls or () if chunk.choices else ())
    ]
    expect("".join(pieces) == call.custom.input, pieces)
    result = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
    history = [*MESSAGES, message.to_dict(), result]
    expect(create(messages=history, tools=forced["tools"], tool_choice="none").choices[0].message.content, "no answer")
    made = respond(tools=flat, tool_choice={"type": "custom", "name": "note"})
    item = made.output[-1]
    expect(item.type == "custom_tool_call" and item.input, made)
    events = list(respond(tools=flat, tool_choice="required", stream=True))
    said = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
    expect(said == events[-1].response.output[-1].input == item.input, said)
    output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "noted"}
    again = respond(input=[output], previous_response_id=made.id, tools=flat, tool_choice="none")
    expect(again.output_text, again)
    return item.input


@step("what cannot run is a BadRequestError")
def _() -> None:
    unknown: Any = {"type": "function", "function": {"name": "nothing"}}
    wrong = function("get_weather", {"type": "nothing"})
    for fields in (
        {"tool_choice": unknown},
        {"tools": [wrong], "tool_choice": "required"},
        {"tools": openai.omit, "tool_choice": "required", "parallel_tool_calls": openai.omit},
    ):
        error = raised(openai.BadRequestError, create, **fields)
        expect(error.body["message"], error.body)
