"""Streams of reasoning, text and calls in the families' own formats, as the official clients read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from echo_engine import WRITE
from stack import NAME, Stack
from test_tool_requests import folder_of

from services.settings.settings import Settings

TEMPLATE = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}{% if tools %}{% endif %}"  # leaves room for answers
TOOL: dict[str, Any] = {
    "name": "now",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
}
ARGUMENTS = {"a": "né", "n": 2}
JSON = '{"a": "né", "n": 2}'
NEXT = "<|end|><|start|>assistant<|channel|>commentary"
FAMILIES = {  # the parsers of calls and reasoning, and what the model writes
    "Qwen3-Coder": (
        "qwen3_coder",
        "qwen3",
        "<think>Hm.</think>I look.\n<tool_call>\n<function=now>\n<parameter=a>\nné\n</parameter>\n"
        "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    "GLM-4.5": (
        "glm45",
        "glm45",
        "<think>Hm.</think>I look.<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>né</arg_value>\n"
        "<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    ),
    "Kimi K2": (
        "kimi_k2",
        "kimi_k2",
        "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
    ),
    "Mistral": ("mistral_v11", "mistral", f"[THINK]Hm.[/THINK]I look.[TOOL_CALLS]now[ARGS]{JSON}"),
    "GPT-OSS": (
        "openai",
        "openai_gptoss",
        f"<|channel|>analysis<|message|>Hm.{NEXT}<|message|>I look.{NEXT} to=functions.now<|message|>{JSON}",
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def stack(redis_url: str, family: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = Settings(tool_call_parser=family[0], reasoning_parser=family[1])
    folder = folder_of(tmp_path_factory.mktemp("formats"), TEMPLATE)
    with Stack(redis_url, f"formats-{family[0]}", folder, settings) as stack:
        yield stack


def test_chat(client: openai.OpenAI, family: tuple[str, str, str]) -> None:
    said: dict[str, Any] = {"messages": [{"role": "user", "content": WRITE + family[2]}], "model": NAME}
    reasoning, text, names, arguments, reasons = "", "", [], "", []
    for chunk in client.chat.completions.create(**said, tools=[{"type": "function", "function": TOOL}], stream=True):
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
        for call in delta.tool_calls or ():
            assert call.function
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (reasoning, text, names, reasons) == ("Hm.", "I look.", ["now"], ["tool_calls"])
    assert json.loads(arguments) == ARGUMENTS


def test_responses(client: openai.OpenAI, family: tuple[str, str, str]) -> None:
    tools: Any = [{"type": "function", **TOOL}]
    with client.responses.stream(model=NAME, input=WRITE + family[2], tools=tools) as stream:
        kinds = [event.type for event in stream]
        made = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds
    assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]
    assert made.output_text == "I look."
    assert json.loads(made.output[-1].arguments) == ARGUMENTS  # type: ignore[union-attr]


def test_messages(stack: Stack, family: tuple[str, str, str]) -> None:
    client = anthropic.Anthropic(base_url=stack.url, api_key="none")
    tools: Any = [{"name": "now", "input_schema": TOOL["parameters"]}]
    with client.messages.stream(
        model=NAME, max_tokens=195, messages=[{"role": "user", "content": WRITE + family[2]}], tools=tools
    ) as stream:
        made = stream.get_final_message()
    assert [block.type for block in made.content] == ["thinking", "text", "tool_use"]
    assert made.content[-1].input == ARGUMENTS  # type: ignore[union-attr]
    assert made.stop_reason == "tool_use"
