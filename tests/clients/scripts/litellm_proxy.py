"""LiteLLM's proxy in front of the server, and the packages of OpenAI and Anthropic in front of the proxy."""

from __future__ import annotations

import json
from typing import Any

from anthropic import Anthropic
from examples import ASK, CLOCK_PARAMETERS, LENGTH, NAMED, PARAMETERS, TOOLS, Report, check_call
from openai import OpenAI
from steps import API_KEY, BASE_URL, BIN, MODEL, QUESTION, SCRATCH, URL, expect, free_port, process, step

PORT = free_port()
PROXY = f"http://127.0.0.1:{PORT}"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
ASKED: list[Any] = [{"role": "user", "content": ASK}]
ANTHROPIC_TOOLS: list[Any] = [
    {"name": "get_weather", "description": "the weather of a city", "input_schema": PARAMETERS},
    {"name": "get_time", "description": "the time", "input_schema": CLOCK_PARAMETERS},
]
KEY = "sk-of-the-proxy-of-this-run-alone-0123456789"
MODELS = {
    "by-openai": {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY},
    "by-vllm": {"model": f"hosted_vllm/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY},
    "by-anthropic": {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": API_KEY},
}
CONFIG = {
    "model_list": [{"model_name": name, "litellm_params": settings} for name, settings in MODELS.items()],
    "router_settings": {"disable_cooldowns": True},  # a step that fails says nothing of the next one
}
ANSWERED = f"{PROXY}/health/liveliness"


def main() -> None:
    config = SCRATCH / "proxy.yaml"
    config.write_text(json.dumps(CONFIG))
    command = [BIN / "litellm", "--config", config, "--host", "127.0.0.1", "--port", PORT, "--num_workers", 1]
    with process(command, ANSWERED, LITELLM_MASTER_KEY=KEY):
        by_openai(OpenAI(base_url=f"{PROXY}/v1", api_key=KEY, max_retries=0))
        by_anthropic(Anthropic(base_url=PROXY, api_key=KEY, max_retries=0))


def by_openai(client: OpenAI) -> None:
    @step("openai: chat")
    def _() -> None:
        for model in ("by-openai", "by-vllm"):
            answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12)
            expect(answer.choices[0].message.content, answer)

    @step("openai: chat stream with usage")
    def _() -> None:
        options: Any = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(
                model="by-openai", messages=MESSAGES, max_tokens=12, stream=True, stream_options=options
            )
        )
        expect(any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks), chunks)
        expect(chunks[-1].usage and chunks[-1].usage.completion_tokens > 0, chunks[-1])

    @step("openai: completions")
    def _() -> None:
        expect(client.completions.create(model="by-openai", prompt="Once upon", max_tokens=8).choices[0].text)

    @step("openai: responses")
    def _() -> None:
        expect(client.responses.create(model="by-openai", input=QUESTION, max_output_tokens=12).output_text)

    @step("openai: chat through anthropic/")
    def _() -> None:
        answer = client.chat.completions.create(model="by-anthropic", messages=MESSAGES, max_tokens=12)
        expect(answer.choices[0].message.content, answer)

    @step("openai: parse with a type, chat and responses")
    def _() -> None:
        fields: Any = {"model": "by-openai", "temperature": 0}
        parsed = client.chat.completions.parse(**fields, messages=ASKED, max_tokens=LENGTH, response_format=Report)
        expect(isinstance(parsed.choices[0].message.parsed, Report), parsed)
        answer = client.responses.parse(**fields, input=ASK, max_output_tokens=LENGTH, text_format=Report)
        expect(isinstance(answer.output_parsed, Report), answer)

    for model in MODELS:

        @step(f"openai: tools and their stream through {MODELS[model]['model'].split('/')[0]}/")
        def _(model: str = model) -> None:
            fields: Any = {"model": model, "messages": ASKED, "tools": TOOLS, "tool_choice": NAMED, "temperature": 0}
            whole = client.chat.completions.create(**fields, max_tokens=LENGTH, parallel_tool_calls=False)
            (call,) = whole.choices[0].message.tool_calls or ()
            check_call(call.function.name, call.function.arguments)
            chunks = client.chat.completions.create(**fields, max_tokens=LENGTH, parallel_tool_calls=False, stream=True)
            pieces = [p for chunk in chunks if chunk.choices for p in chunk.choices[0].delta.tool_calls or ()]
            text = "".join(piece.function.arguments or "" for piece in pieces)
            expect(json.loads(text) == json.loads(call.function.arguments), pieces)


def by_anthropic(client: Anthropic) -> None:
    for model in MODELS:

        @step(f"anthropic: messages through {MODELS[model]['model'].split('/')[0]}/")
        def _(model: str = model) -> None:
            answer = client.messages.create(model=model, messages=MESSAGES, max_tokens=20)
            block = answer.content[0]
            expect(block.text if block.type == "text" else "", answer)

        @step(f"anthropic: messages stream through {MODELS[model]['model'].split('/')[0]}/")
        def _(model: str = model) -> None:
            with client.messages.stream(model=model, messages=MESSAGES, max_tokens=20) as stream:
                expect("".join(stream.text_stream))

        @step(f"anthropic: tools, their stream and a loop through {MODELS[model]['model'].split('/')[0]}/")
        def _(model: str = model) -> None:
            choice = {"type": "any", "disable_parallel_tool_use": True}
            # LiteLLM drops `disable_parallel_tool_use` and, to hosted_vllm/, `additionalProperties`, so that a sampled
            # answer may have two calls or more properties
            fields: Any = {
                "model": model,
                "max_tokens": LENGTH,
                "tools": ANTHROPIC_TOOLS,
                "extra_body": {"temperature": 0},
            }
            answer: Any = client.messages.create(**fields, messages=ASKED, tool_choice=choice)
            (block,) = [block for block in answer.content if block.type == "tool_use"]
            check_call(block.name, block.input)
            with client.messages.stream(**fields, messages=ASKED, tool_choice=choice) as stream:
                said: Any = stream.get_final_message().content[-1]
            check_call(said.name, said.input)
            result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
            history = [*ASKED, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
            fields["max_tokens"] = 12
            last = client.messages.create(**fields, messages=history, tool_choice={"type": "none"})
            expect(last.content[0].type == "text", last)


main()
