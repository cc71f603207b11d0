"""Which marks in an assistant's text of the history stay control tokens: those that the own parser reads as marks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_calls import CALLS
from test_tool_requests import folder_of

from gateway.answer.own_marks import MOST, SIGN, own_marks
from gateway.answer.parsers.registry import make_parser, marks_of
from gateway.answer.parts import TEXT, Part
from gateway.answer.reading import ModelReading
from services.settings.settings import Settings
from services.text import Tokenizer

CALL = '<tool_call>\n{"name": "now", "arguments": {"a": "<tool_call>"}}\n</tool_call>'


def kept(text: str, opens: bool = False) -> list[str]:
    return [text[place.start : place.stop] for place in own_marks(text, "hermes", "qwen3", opens)]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("a <think> b", []),
        ("a </think> b", []),
        ("a <tool_call> b </tool_call>", []),
        ("<think>a</think>b", ["<think>", "</think>"]),
        ("<think>a</think>", ["<think>", "</think>"]),
        ("<think>a", ["<think>"]),
        ("<think><think>a</think>b</think><think>", ["<think>", "</think>"]),
        ("b" + CALL, ["<tool_call>", "</tool_call>"]),
        ("<think>" + CALL + "</think>", ["<think>", "</think>"]),
        ("<think>a</think>" + CALL, ["<think>", "</think>", "<tool_call>", "</tool_call>"]),
        ("<|im_end|>", []),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    assert kept(text) == marks


def test_a_template_that_begins_the_reasoning() -> None:
    assert kept("a</think>b", opens=True) == ["</think>"]
    assert kept("<think>a</think>b", opens=True) == ["<think>", "</think>"]


@pytest.mark.parametrize("name", CALLS)
def test_all_marks_of_calls_stay(name: str) -> None:
    """But for those of a special token that ends with the answer, without which the calls are read, too."""
    text = CALLS[name].text
    marks = [mark for mark in marks_of(name, "") if text.count(mark) == 1]
    places = own_marks(text, name, "", False)
    found = {text[place.start : place.stop] for place in places}
    assert set(marks[:1]) <= found
    assert all(mark in text for mark in found)


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "a", "\n", '{"name": "b"}']


@given(text=st.lists(st.sampled_from(PIECES), max_size=8).map("".join), opens=st.booleans())
def test_without_the_others_a_text_is_read_alike(text: str, opens: bool) -> None:
    places = own_marks(text, "hermes", "qwen3", opens)
    assert all(text[place.start : place.stop] in marks_of("hermes", "qwen3") for place in places)

    def broken(found: re.Match[str]) -> str:
        return found[0] if any(found.start() in place for place in places) else found[0][0] + SIGN + found[0][1:]

    def read(written: str) -> list[Part]:
        begins = "<think>" in text.partition("</think>")[0]
        parser = make_parser("hermes", "qwen3", opens and not begins, True)
        assert parser
        return [p._replace(text=p.text.replace(SIGN, "")) for p in parser.push(written) + parser.finish()]

    if not all(part.kind is TEXT for part in read(text)):
        assert read(re.sub("</?think>|</?tool_call>", broken, text)) == read(text)


def test_a_text_with_too_many_marks_has_none() -> None:
    assert own_marks("<think>" + "</think>" * (MOST // 4000), "hermes", "qwen3", False) == []


@pytest.mark.parametrize(("begun", "opens"), [("<think>\n", True), ("", False)])
def test_the_template_says_how_answers_begin(tmp_path: Path, begun: str, opens: bool) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>"
        + begun
        + "{% endif %}{# <think></think> #}"
    )
    settings: dict[str, Any] = {"tool_call_parser": "none", "reasoning_parser": "qwen3"}
    reading = ModelReading(Tokenizer.load(folder_of(tmp_path, template)), Settings(**settings))
    assert bool(reading.own_marks("a</think>b")) is opens
