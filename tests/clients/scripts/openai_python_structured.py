"""Structured output by the official package for Python: its `parse` methods, its stream helpers, and vLLM's fields."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
from examples import ASK, LENGTH, Report
from openai import AsyncOpenAI, OpenAI
from steps import API_KEY, BASE_URL, MODEL, expect, raised, step

client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": ASK}]
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "report", "schema": Report.model_json_schema()},
}


def create(**more: Any) -> Any:
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": LENGTH, "temperature": 1, "seed": 5}
    return client.chat.completions.create(**fields | more)


@step("chat.completions.parse")
def _() -> str:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Report, max_tokens=LENGTH, temperature=0
    )
    expect(isinstance(answer.choices[0].message.parsed, Report), answer)
    expect(answer.choices[0].finish_reason == "stop", answer)
    return answer.choices[0].message.content or ""


@step("chat.completions.parse with n, temperature, penalties, logprobs")
def _() -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        response_format=Report,
        max_completion_tokens=LENGTH,
        n=2,
        temperature=1,
        seed=3,
        frequency_penalty=0.2,
        logit_bias={"100": -5},
        logprobs=True,
        top_logprobs=2,
    )
    expect(len(answer.choices) == 2, answer)
    for choice in answer.choices:
        expect(isinstance(choice.message.parsed, Report), choice)
        logprobs = choice.logprobs
        expect(logprobs and logprobs.content and len(logprobs.content[0].top_logprobs) == 2, choice)


@step("chat.completions.stream with a type")
def _() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Report, max_tokens=LENGTH, temperature=0
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "content.delta"]
    expect(isinstance(final.choices[0].message.parsed, Report), final)
    expect("".join(event.delta for event in deltas) == final.choices[0].message.content, final)
    expect(isinstance(deltas[-1].parsed, dict), deltas)


@step("a stream is the answer as a whole")
def _() -> None:
    whole = create(response_format=SCHEMA).choices[0].message.content
    chunks = create(response_format=SCHEMA, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text == whole and Report.model_validate_json(text), text, whole)


@step("json_schema with strict true and false")
def _() -> None:
    for strict in (True, False):
        named = SCHEMA["json_schema"] | {"strict": strict, "description": "the weather"}
        answer = create(response_format={"type": "json_schema", "json_schema": named})
        Report.model_validate_json(answer.choices[0].message.content)


@step("json_object")
def _() -> None:
    messages = [{"role": "user", "content": 'Answer with {"city": "Rome"} as JSON.'}]
    answer = create(messages=messages, response_format={"type": "json_object"}, temperature=0)
    said = answer.choices[0].message.content
    expect(said.startswith("{"), said)
    if answer.choices[0].finish_reason == "stop":
        expect(isinstance(json.loads(said), dict), said)


@step("an answer that is cut off")
def _() -> None:
    fields: Any = {"model": MODEL, "messages": MESSAGES, "response_format": Report, "max_tokens": 8}
    error = raised(openai.LengthFinishReasonError, client.chat.completions.parse, **fields)
    expect(error.completion.choices[0].finish_reason == "length", error)


@step("with a stop string")
def _() -> None:
    answer = create(response_format=SCHEMA, stop=['"celsius'])
    said = answer.choices[0].message.content
    expect(said.startswith('{"place": {"city": "') and "celsius" not in said, answer)


@step("completions")
def _() -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The weather as JSON:", max_tokens=LENGTH, seed=1, extra_body={"response_format": SCHEMA}
    )
    Report.model_validate_json(answer.choices[0].text)


@step("async client")
async def _() -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as asynchronous:
        answer = await asynchronous.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Report, max_tokens=LENGTH
        )
        expect(isinstance(answer.choices[0].message.parsed, Report), answer)


@step("responses.parse")
def _() -> None:
    answer = client.responses.parse(model=MODEL, input=ASK, text_format=Report, max_output_tokens=LENGTH, temperature=0)
    expect(isinstance(answer.output_parsed, Report) and answer.status == "completed", answer)
    stored = client.responses.retrieve(answer.id)
    expect(stored.output_text == answer.output_text and stored.text == answer.text, stored)


@step("responses.stream with a type")
def _() -> None:
    with client.responses.stream(
        model=MODEL, input=ASK, text_format=Report, max_output_tokens=LENGTH, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    expect(isinstance(final.output_parsed, Report), final)
    expect(kinds[-1] == "response.completed" and "response.output_text.delta" in kinds, kinds)


@step("responses with text.format json_object")
def _() -> None:
    text: Any = {"format": {"type": "json_object"}}
    answer = client.responses.create(model=MODEL, input=ASK, text=text, max_output_tokens=40, temperature=0)
    expect(answer.output_text.startswith("{") and answer.text and answer.text.format.type == "json_object", answer)


@step("vLLM's structured_outputs: choice, regex, json, grammar")
def _() -> None:
    tone = {"choice": ["good", "bad", "neither of them"]}
    pattern = {"regex": "[A-Z][a-z]{2,5}, [1-9][0-9]? degrees"}
    rules = {"grammar": 'start: sum\nsum: NUMBER (" + " NUMBER){1,3}\nNUMBER: /[1-9][0-9]?/'}
    checks = (
        (tone, lambda text: text in tone["choice"]),
        (pattern, lambda text: re.fullmatch(pattern["regex"], text)),
        ({"json": Report.model_json_schema()}, Report.model_validate_json),
        (rules, lambda text: re.fullmatch(r"[1-9]\d?( \+ [1-9]\d?){1,3}", text)),
    )
    for constraint, check in checks:
        said = create(extra_body={"structured_outputs": constraint}).choices[0].message.content
        expect(check(said), constraint, said)


@step("vLLM's older guided_choice, guided_regex, guided_json")
def _() -> None:
    for fields, pattern in (
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
    ):
        said = create(extra_body=fields).choices[0].message.content
        expect(re.fullmatch(pattern, said), fields, said)


@step("batches")
def _() -> None:
    body = {"model": MODEL, "messages": MESSAGES, "response_format": SCHEMA, "max_tokens": LENGTH, "seed": 1}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("batch.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        batch = client.batches.retrieve(batch.id)
    answer = json.loads(client.files.content(str(batch.output_file_id)).text)["response"]["body"]
    Report.model_validate_json(answer["choices"][0]["message"]["content"])


@step("what cannot run is a BadRequestError")
def _() -> None:
    named = {"name": "wrong", "schema": {"type": "nothing"}}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": SCHEMA, "extra_body": {"ignore_eos": True}},
        {"response_format": SCHEMA, "extra_body": {"min_tokens": 3}},
        {"extra_body": {"structured_outputs": {"regex": "("}}},
        {"extra_body": {"structured_outputs": {"choice": []}}},
    ):
        error = raised(openai.BadRequestError, create, **fields)
        expect(error.body["message"], error.body)
