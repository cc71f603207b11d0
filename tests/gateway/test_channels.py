"""Harmony's channels, and the marks of reasoning of other families.

The texts are made in the form of OpenAI's document of the format (openai/harmony, `docs/format.md`, Apache-2.0) and of
the families' chat templates (see `recorded_calls`).
"""

from __future__ import annotations

import random

import pytest
from allowed_texts import Grammar
from recorded_calls import CALLS
from test_parsers import call, read, said, thought
from test_tool_grammars import GRAMMARS, TABLES, TOOLS, accepts, drawn, tokens_of

from gateway.answer.parsers.formats import CALL_FORMATS, REASONING_FORMATS, REASONING_SIGNS, SIGNS, recognized
from gateway.answer.parsers.registry import REASONING_PARSERS, make_parser
from gateway.answer.parts import CALL, Parser, Part
from gateway.grammars.harmony import harmony_rule
from gateway.grammars.rules import json_rule
from gateway.tools import ToolChoice, ToolUse

THOUGHT = "<|channel|>analysis<|message|>Hm, né 🐳.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>So."
WEATHER = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "x", "unit": "C"}'
REASONED = [thought("Hm, né 🐳.")]
CALLED = [call(0, "weather", '{"city": "x", "unit": "C"}')]

CASES = {
    "thought and answer": (f"{THOUGHT}{NEXT}{FINAL}<|return|>", [*REASONED, said("So.")]),
    "without its end": (f"{THOUGHT}{NEXT}{FINAL}", [*REASONED, said("So.")]),
    "a call": (f"{THOUGHT}{NEXT}{WEATHER}<|call|>", [*REASONED, *CALLED]),
    "a call whose end is a stop token": (f"{THOUGHT}{NEXT}{WEATHER}", [*REASONED, *CALLED]),
    "the recipient before the channel": (
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "x", "unit": "C"}<|call|>',
        CALLED,
    ),
    "a call in the analysis": (WEATHER.replace("commentary", "analysis"), CALLED),
    "a remark before a call": (
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{WEATHER}",
        [said("I look."), *CALLED],
    ),
    "two calls": (
        f"{WEATHER}<|call|>{NEXT}<|channel|>commentary to=functions.time<|message|> {{}} <|call|>",
        [*CALLED, call(1, "time", "{}")],
    ),
    "two thoughts": (f"{THOUGHT}{NEXT}{THOUGHT}{NEXT}{FINAL}", [thought("Hm, né 🐳.\nHm, né 🐳."), said("So.")]),
    "no end between": (f"<|channel|>analysis<|message|>Hm.{NEXT}{FINAL}", [thought("Hm."), said("So.")]),
    "a tool of the model's own": (
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        [thought("1 + 1")],
    ),
    "cut in a head": ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", [thought("Hm.")]),
    "text alone": ("So it is.", [said("So it is.")]),
    "the rest of a final message": ("So it is.<|return|>", [said("So it is.")]),
    "no head": ("<|chan", [said("<|chan")]),
    "empty": (f"{THOUGHT}{NEXT}<|channel|>final<|message|><|return|>", REASONED),
}


def parser(tools: bool = True, reasoning: bool = True, open: bool = False) -> Parser:
    made = make_parser("openai" if tools else "", "openai_gptoss" if reasoning else "", open, True)
    assert made is not None
    return made


@pytest.mark.parametrize("case", CASES)
def test_messages_are_read_however_they_are_cut(case: str) -> None:
    text, expected = CASES[case]
    assert read(parser(), text) == expected
    assert read(parser(), *text) == expected
    for place in range(1, len(text)):
        assert read(parser(), text[:place], text[place:]) == expected, text[:place]


def test_an_answer_that_begins_in_the_analysis() -> None:
    assert read(parser(open=True), f"Hm.<|end|>{NEXT}{FINAL}") == [thought("Hm."), said("So.")]


def test_without_tools_or_reasoning() -> None:
    text = f"{THOUGHT}{NEXT}{WEATHER}"
    assert not [part for part in read(parser(tools=False), text) if part.kind is CALL]
    assert read(parser(reasoning=False), text) == [said("Hm, né 🐳."), *CALLED]


def test_a_head_that_does_not_end_is_text() -> None:
    text = "<|channel|>" + "a" * 600
    whole = read(parser(), text)
    assert whole == read(parser(), *text)
    assert sum(len(part.text) for part in whole) > 0


REQUIRED, AUTO = ToolUse(TOOLS, ToolChoice("required")), ToolUse(TOOLS)


@pytest.mark.parametrize("opened", [False, True])
def test_forced_calls_are_messages(opened: bool) -> None:
    rule = harmony_rule(REQUIRED, TABLES, None, opened)
    assert rule is not None
    forced, begin = rule.grammar(), f"Hm.<|end|>{NEXT}" if opened else ""
    assert accepts(forced, begin + WEATHER)
    assert accepts(forced, f"{begin}{THOUGHT}{NEXT}{WEATHER}")
    assert not accepts(forced, begin + FINAL)
    assert not accepts(forced, f"{begin}<|channel|>commentary<|message|>I look.<|end|>{NEXT}{WEATHER}")
    assert not accepts(forced, begin + WEATHER.replace('"C"', '"K"'))
    assert not accepts(forced, begin + WEATHER.replace("weather", "other"))


def test_texts_do_not_spell_marks(grammar: Grammar) -> None:
    """The tiny tokenizer has no special tokens for them."""
    tables = grammar.model.tokenizer.tables
    forced, free = harmony_rule(REQUIRED, tables, None, False), harmony_rule(AUTO, tables, None, False)
    assert forced is not None
    assert free is not None
    analysis = "<|channel|>analysis<|message|>"
    for text in ("a < b <", "|end|> <", "<<"):
        assert grammar.allows(forced, f"{analysis}{text}<|end|>{NEXT}{WEATHER}"), text
    for text in (f"a<|end|>{NEXT} b", "a<|end|>", f"a{NEXT}", "<|channel|>final"):
        assert not grammar.allows(forced, f"{analysis}{text}<|end|>{NEXT}{WEATHER}"), text
        assert not grammar.allows(free, f"{FINAL}{text}"), text


def test_strict_calls_or_an_answer() -> None:
    rule = harmony_rule(AUTO, TABLES, None, False)
    assert rule is not None
    for text in (
        FINAL,
        WEATHER,
        f"{THOUGHT}{NEXT}{FINAL}",
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{WEATHER}",
    ):
        assert accepts(rule.grammar(), text), text
    assert not accepts(rule.grammar(), WEATHER.replace('"C"', '"K"'))
    answer = json_rule({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})
    formatted = harmony_rule(ToolUse(), TABLES, answer, False)
    assert formatted is not None
    assert accepts(formatted.grammar(), f'{THOUGHT}{NEXT}<|channel|>final<|message|>{{"a": 1}}')
    assert not accepts(formatted.grammar(), FINAL)
    assert harmony_rule(ToolUse(TOOLS[1:]), TABLES, None, False) is None


def test_drawn_messages_are_read() -> None:
    rule, rng = harmony_rule(REQUIRED, TABLES, None, False), random.Random(1)
    assert rule is not None
    grammar = rule.grammar()
    GRAMMARS.check(grammar)
    for _ in range(6):
        parts = read(parser(), drawn(grammar, rng, tokens_of("<|channel|>commentary to=functions.")))
        assert next(part.name for part in parts if part.kind is CALL) in {tool.name for tool in TOOLS}


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_reasoning_between_the_marks_of_each_family(name: str) -> None:
    form = REASONING_FORMATS[name]
    text = f"{form.begin}\nHm né.\n{form.end}\n\n{form.answer_begin}\nSo <b>.\n{form.answer_end}"
    expected = [thought("Hm né."), said("So <b>." + ("" if form.answer_end else "\n"))]
    for opened, written in ((False, text), (True, text.removeprefix(form.begin))):
        for pieces in ([written], list(written), [written[:7], written[7:]]):
            made = make_parser("", name, opened, True)
            assert made is not None
            assert read(made, *pieces) == expected


@pytest.mark.parametrize("name", ["glm45", "cohere_command3", "gemma4", "mistral", "seed_oss"])
def test_calls_after_reasoning(name: str) -> None:
    form = REASONING_FORMATS[name]
    tools = {"mistral": "mistral_v11"}.get(name, name)
    text = f"{form.begin}Hm.{form.end}{CALLS[tools].text}"
    made, plain = make_parser(tools, name, False, True), make_parser(tools, "", False, True)
    assert made is not None
    assert plain is not None
    parts: list[Part] = read(made, *text)
    assert parts == [thought("Hm."), *read(plain, CALLS[tools].text)]


# what chat templates of the families write, shortened to the texts by which they are told apart
TEMPLATES = {
    "openai": "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>",
    "mistral": "[TOOL_CALLS] [",
    "mistral_v11": "[TOOL_CALLS]{{ c.name }}[ARGS]",
    "deepseek_v3": "'<｜tool▁calls▁begin｜>' + name + '\\n```json\\n'",
    "deepseek_v31": "'<｜tool▁calls▁begin｜>'",
    "qwen3_coder": "'<tool_call>\\n<function=' ~ name ~ '>\\n<parameter='",
    "glm45": "'\n<tool_call>' + name {% for k %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>",
    "glm47": "'<tool_call>' + name {% for k %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "hermes": '<tool_call>\n{"name": "',
    "llama3_json": '\'{"name": "\' + name + \'", "parameters": \'',
    "jamba": "<tool_calls>\\n[",
    "hunyuan_a13b": "<tool_calls>[",
    "pythonic": "[func_name1(params_name1=params_value1)]",
    "": "{{ tools }}",
}


def test_formats_are_told_apart_by_the_template() -> None:
    for name, template in TEMPLATES.items():
        assert recognized(template, SIGNS) == name
    assert {name for name, _ in SIGNS} <= {*CALL_FORMATS, "openai", ""}
    assert {name for name, _ in REASONING_SIGNS} <= set(REASONING_PARSERS)
    assert recognized("<think></think>", REASONING_SIGNS) == "deepseek_r1"
    assert recognized("[THINK] [/THINK]", REASONING_SIGNS) == "mistral"
