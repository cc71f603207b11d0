"""The official package for Python: every text feature that it has a method for."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from steps import API_KEY, BASE_URL, MODEL, QUESTION, expect, raised, step

client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, timeout=120)
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]


@step("models")
def _() -> None:
    expect([model.id for model in client.models.list()] == [MODEL])
    expect(client.models.retrieve(MODEL).id == MODEL)


@step("chat")
def _() -> str | None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=12)
    expect(answer.choices[0].message.content and answer.usage and answer.usage.completion_tokens > 0, answer)
    return answer.choices[0].message.content


@step("chat with n, stop, seed, penalties, logprobs")
def _() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=8,
        n=2,
        stop=["\n"],
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"100": -5},
        logprobs=True,
        top_logprobs=3,
    )
    expect(len(answer.choices) == 2, answer)
    logprobs = answer.choices[0].logprobs
    expect(logprobs and logprobs.content and len(logprobs.content[0].top_logprobs) == 3, answer)


@step("chat stream with usage")
def _() -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=12)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text == whole.choices[0].message.content, text, whole)
    expect(chunks[-1].usage == whole.usage, chunks[-1], whole.usage)


@step("chat stream helper")
def _() -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=64) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    expect({"chunk", "content.delta", "content.done"} <= kinds, kinds)
    expect(final.choices[0].message.content, final)


@step("history of dumped answers")
def _() -> None:
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8)
    said: Any = first.choices[0].message
    for turn in (said, said.model_dump(), said.model_dump(exclude_none=True)):
        history = [*MESSAGES, turn, {"role": "user", "content": "And of Spain?"}]
        second = client.chat.completions.create(model=MODEL, messages=history, max_tokens=8)
        expect(second.choices[0].message.content is not None, second)


@step("history with tool calls and results")
def _() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=history, max_tokens=8)
    expect(answer.choices[0].message.content is not None, answer)


@step("completions")
def _() -> None:
    answer = client.completions.create(model=MODEL, prompt=["Once upon", "The sea"], max_tokens=8, n=2, logprobs=2)
    expect(len(answer.choices) == 4, answer)
    expect([choice.index for choice in answer.choices] == [0, 1, 2, 3], answer)


@step("completions stream with usage")
def _() -> None:
    stream = client.completions.create(
        model=MODEL, prompt="Once upon", max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    expect("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), chunks)
    expect(chunks[-1].usage and chunks[-1].usage.completion_tokens == 8, chunks[-1])


@step("completions with echo and logprobs")
def _() -> None:
    prompt = "The capital of France is Paris"
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, echo=True, logprobs=1, temperature=0)
    logprobs = answer.choices[0].logprobs
    expect(answer.choices[0].text.startswith(prompt), answer)
    expect(logprobs and logprobs.token_logprobs and logprobs.tokens, answer)
    expect(logprobs.token_logprobs[0] is None and logprobs.token_logprobs[1] < 0, logprobs)
    expect("".join(logprobs.tokens) == answer.choices[0].text, logprobs)


@step("async client")
async def _() -> None:
    async with AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as asynchronous:
        stream = await asynchronous.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, stream=True)
        expect([chunk async for chunk in stream][-1].choices[0].finish_reason in ("stop", "length"))


@step("responses")
def _() -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, instructions="Be brief.", max_output_tokens=12)
    expect(answer.output_text and answer.usage and answer.usage.output_tokens > 0, answer)
    second = client.responses.create(
        model=MODEL, input="And of Spain?", previous_response_id=answer.id, max_output_tokens=12
    )
    expect(second.output_text and client.responses.retrieve(second.id).output_text == second.output_text, second)


@step("responses with the output as history")
def _() -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=12)
    turns: list[Any] = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "Why?"}]
    expect(client.responses.create(model=MODEL, input=turns, max_output_tokens=8).output_text)
    dumped: Any = [turns[0], *(item.model_dump() for item in first.output), turns[-1]]
    expect(client.responses.create(model=MODEL, input=dumped, max_output_tokens=8).output_text)


@step("responses stream")
def _() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=64) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    expect(kinds[0] == "response.created" and "response.output_text.delta" in kinds, kinds)
    expect(final.output_text, final)


@step("responses in the background, cancelled, deleted")
def _() -> None:
    job = client.responses.create(model=MODEL, input=QUESTION, background=True, max_output_tokens=12)
    while job.status in ("queued", "in_progress"):
        time.sleep(0.2)
        job = client.responses.retrieve(job.id)
    expect(job.output_text, job)
    client.responses.delete(job.id)
    long = client.responses.create(model=MODEL, input="Count for ever.", background=True, max_output_tokens=2000)
    cancelled = client.responses.cancel(long.id)
    expect(cancelled.status == "cancelled", cancelled)
    try:
        client.responses.retrieve(job.id)
        expect(False, "a deleted response was found")
    except openai.NotFoundError:
        pass


@step("responses.input_items")
def _() -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    items: list[Any] = list(client.responses.input_items.list(answer.id))
    expect(items[0].content[0].text == QUESTION, items)


@step("responses.input_tokens")
def _() -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION)
    expect(answer.usage and counted.input_tokens == answer.usage.input_tokens, counted, answer.usage)


@step("errors as exceptions")
def _() -> None:
    for call, kind in (
        (lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9), openai.BadRequestError),
        (lambda: client.chat.completions.create(model="nothing", messages=MESSAGES), openai.NotFoundError),
        (lambda: client.responses.retrieve("resp_nothing"), openai.NotFoundError),
        (
            lambda: client.with_options(timeout=0.2).completions.create(
                model=MODEL, prompt="Once", max_tokens=2000, extra_body={"ignore_eos": True}
            ),
            openai.APITimeoutError,
        ),
    ):
        raised(kind, call)


@step("files")
def _() -> None:
    file = client.files.create(file=("lines.jsonl", b'{"a": 1}\n'), purpose="batch")
    expect(client.files.retrieve(file.id).bytes == 9)
    expect(file.id in [one.id for one in client.files.list()])
    expect(client.files.content(file.id).content == b'{"a": 1}\n')
    expect(client.files.delete(file.id).deleted)


@step("batches")
def _() -> str:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
    lines = [
        {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(4)
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("batch.jsonl", data), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    end = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "expired", "cancelled") and time.monotonic() < end:
        time.sleep(0.5)
        batch = client.batches.retrieve(batch.id)
    expect(batch.status == "completed" and batch.output_file_id, batch)
    answers = [json.loads(line) for line in client.files.content(str(batch.output_file_id)).text.splitlines()]
    expect({answer["custom_id"] for answer in answers} == {f"line-{i}" for i in range(4)}, answers)
    expect(all(answer["response"]["status_code"] == 200 for answer in answers), answers)
    return f"{len(answers)} lines"
