"""A stream with reasoning, text and calls goes on at a new gateway after each of its events, with the same events: in
each kind of format, whole calls and cut ones, and in each API."""

from __future__ import annotations

import pytest
from resumed_streams import KINDS, check_resumed_at_every_event, plan_of

from gateway.answer.plan import AnswerKind
from gateway.model import ServedModel

JSON = '{"a": "né\\n"}'
HEAD = "<|start|>assistant<|channel|>commentary"
ANSWERS = {  # the parsers of calls and reasoning, and what the model writes
    "tags": (
        "qwen3_coder",
        "qwen3",
        "<think>Hm.</think>So\n<tool_call>\n<function=now>\n<parameter=a>\nné\n</parameter>\n<parameter=n>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    "name and JSON": (
        "kimi_k2",
        "kimi_k2",
        "<think>Hm.</think>So<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "literals": (
        "lfm2",
        "qwen3",
        "<think>Hm.</think>So<|tool_call_start|>[now(a='né\\n', n=2), now()]<|tool_call_end|>",
    ),
    "objects": (
        "hermes",
        "qwen3",
        f'<think>Hm.</think>So<tool_call>\n{{"name": "now", "arguments": {JSON}}}\n</tool_call>.',
    ),
    "channels": (
        "openai",
        "openai_gptoss",
        f"<|channel|>analysis<|message|>Hm.<|end|>{HEAD}<|message|>So<|end|>{HEAD} to=functions.now<|message|>{JSON}",
    ),
    "reasoning that ends the answer": ("hermes", "qwen3", "<think>Hm. né"),
}
TYPES = {"now": {"n": "integer"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_resumed_after_every_event(model: ServedModel, name: str, kind: AnswerKind) -> None:
    tools, reasoning, text = ANSWERS[name]
    plan = plan_of(tool_parser=tools, reasoning_parser=reasoning, types=TYPES)
    for said in (text, text[:-24]):
        assert check_resumed_at_every_event(model, plan, model.tokenizer.encode(said), kind) > 1


@pytest.mark.parametrize("kind", [AnswerKind.CHAT, AnswerKind.RESPONSE])
def test_the_input_of_a_custom_tool(model: ServedModel, kind: AnswerKind) -> None:
    text = 'So<tool_call>\n{"name": "now", "arguments": {"input": "n\\u00e9 \\"x\\" \\ud83d\\udc33\\n"}}\n</tool_call>'
    plan = plan_of(tool_parser="hermes", custom=("now",))
    assert check_resumed_at_every_event(model, plan, model.tokenizer.encode(text), kind) > 8


@pytest.mark.parametrize("kind", KINDS)
def test_reasoning_that_the_prompt_began(model: ServedModel, kind: AnswerKind) -> None:
    plan = plan_of(tool_parser="hermes", reasoning_parser="qwen3", reasoning_open=True)
    text = f'Hm.\n</think>\n\n<tool_call>{{"name": "now", "arguments": {JSON}}}</tool_call>'
    assert check_resumed_at_every_event(model, plan, model.tokenizer.encode(text), kind) > 8
