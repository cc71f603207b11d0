"""The output of parsers does not depend on cuts of the text. They never raise, and drop only marks and whitespace."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.answer.parsers.registry import make_parser
from gateway.answer.parts import CALL, REASONING, TEXT, Parser, Part, PartWriter

WEATHER = '{"name": "weather", "arguments": {"city": "Oslo", "days": [1, 2]}}'
TIME = '{"name": "time", "arguments": {}}'
SKY = '{"city": "Oslo", "days": [1, 2]}'


def parser(name: str, thinking: bool = False, open: bool = False, parallel: bool = True) -> Parser:
    made = make_parser(name, "qwen3" if thinking else "", open, parallel)
    assert made is not None
    return made


def read(parser: Parser, *texts: str) -> list[Part]:
    writer = PartWriter()
    for piece in [p for text in texts for p in parser.push(text)] + parser.finish():
        writer.add(piece.kind, piece.text, piece.call, piece.name)
    return writer.take()


def said(text: str) -> Part:
    return Part(TEXT, text)


def thought(text: str) -> Part:
    return Part(REASONING, text)


def call(index: int, name: str, arguments: str) -> Part:
    return Part(CALL, arguments, index, name)


CALLED = [call(0, "weather", SKY)]
BOTH = [*CALLED, call(1, "time", "{}")]
H = f"<tool_call>\n{WEATHER}\n</tool_call>"

CASES = {
    "no call": ("hermes", "Hello <b>you</b> \n", [said("Hello <b>you</b> \n")]),
    "a call": ("hermes", H, CALLED),
    "text before a call": ("hermes", f"I look.\n\n{H}\n", [said("I look."), *CALLED]),
    "text after a call": ("hermes", f"{H}\n\n So. \n", [*CALLED, said("So. \n")]),
    "two calls": ("hermes", f"{H}\n<tool_call>{TIME}</tool_call>", BOTH),
    "two in a mark": ("hermes", f"<tool_call>{WEATHER}\n{TIME}</tool_call>", BOTH),
    "a list": ("smollm2", f"<tool_call>[{WEATHER}, {TIME}]</tool_call>", BOTH),
    "arguments first": ("hermes", f'<tool_call>{{"arguments": {SKY}, "name": "weather"}}</tool_call>', CALLED),
    "other fields": (
        "hermes",
        f'<tool_call>{{"id": 7, "x": [{{}}], "name": "weather", "arguments": {SKY}, "y": "z"}}</tool_call>',
        CALLED,
    ),
    "arguments in a string": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {json.dumps(SKY)}}}</tool_call>',
        CALLED,
    ),
    "escapes in that string": (
        "hermes",
        r'<tool_call>{"name": "a", "arguments": "\"\\ud83d\ud83d\udc33\ud83d\u12x\/\n\""}</tool_call>',
        [call(0, "a", '"\\ud83d🐳�\\u12x/\n"')],
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "time"}</tool_call>', [call(0, "time", "{}")]),
    "null arguments": ("hermes", '<tool_call>{"name": "time", "arguments": null}', [call(0, "time", "{}")]),
    "a mark in a string": (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>\\""}}</tool_call>',
        [call(0, "a", '{"x": "</tool_call>\\""}')],
    ),
    "no mark at the end": ("hermes", f"<tool_call>{WEATHER}", CALLED),
    "a bracket too many": ("hermes", f"<tool_call>{WEATHER}}}\n</tool_call> So.", [*CALLED, said("So.")]),
    "a bracket too few": ("hermes", f"<tool_call>{WEATHER[:-1]}</tool_call>So.", [*CALLED, said("So.")]),
    "cut in the arguments": ("hermes", f"<tool_call>{WEATHER[:-4]}", [call(0, "weather", SKY[:-3])]),
    "cut in the name": ("hermes", 'So <tool_call>{"name": "wea', [said('So <tool_call>{"name": "wea')]),
    "cut after the name": ("hermes", 'So <tool_call>{"name": "weather", "arg', [said("So"), call(0, "weather", "")]),
    "a list, cut between calls": ("smollm2", f'<tool_call>[{WEATHER}, {{"name', CALLED),
    "a list, cut after a call": ("smollm2", f"<tool_call>[{WEATHER},", CALLED),
    "a second call, cut in its name": ("hermes", f'{H}\n<tool_call>\n{{"name": "ti', CALLED),
    "a second call, cut after its name": (
        "hermes",
        f'{H}\n<tool_call>\n{{"name": "time"',
        [*CALLED, call(1, "time", "")],
    ),
    "cut in a mark": ("hermes", "So <tool_c", [said("So <tool_c")]),
    "a mark begun twice": ("hermes", f"a <<b <<{H[1:]}", [said("a <<b <"), *CALLED]),
    "no JSON": ("hermes", "<tool_call>weather()</tool_call>", [said("<tool_call>weather()</tool_call>")]),
    "JSON of something else": ("hermes", "<tool_call>{}</tool_call>", [said("<tool_call>{}</tool_call>")]),
    "broken, then right": ("hermes", f"<tool_call>{{'a'\n{H}", [said("<tool_call>{'a'"), *CALLED]),
    "broken after the call": (
        "hermes",
        '<tool_call>{"name": "a", "arguments": {"x": tru oops</tool_call>',
        [call(0, "a", '{"x": tru oops')],
    ),
    "text after the object": ("hermes", f"<tool_call>{WEATHER} so</tool_call>", [*CALLED, said("so")]),
    "llama": ("llama3_json", WEATHER.replace("arguments", "parameters"), CALLED),
    "llama, with its mark": ("llama3_json", f"I look.<|python_tag|>{WEATHER}; {TIME}", [said("I look."), *BOTH]),
    "llama, cut after the name": ("llama3_json", '{"name": "weather", "par', [said('{"name": "weather", "par')]),
    "llama, with its mark, cut": ("llama3_json", '<|python_tag|>{"name": "weather", "par', [call(0, "weather", "")]),
    "llama, JSON as an answer": ("llama3_json", '{"name": "Bob"}', [said('{"name": "Bob"}')]),
    "llama, JSON in an answer": ("llama3_json", f"So: {WEATHER}", [said(f"So: {WEATHER}")]),
    "mistral's list": ("mistral", f"[TOOL_CALLS] [{WEATHER}, {TIME}]", BOTH),
    "mistral's names": (
        "mistral",
        f"I look.[TOOL_CALLS]weather[ARGS]{SKY}[TOOL_CALLS]time{{}}",
        [said("I look."), *BOTH],
    ),
    "mistral's ids": ("mistral", f"[TOOL_CALLS]weather[CALL_ID]aB3[ARGS]{SKY}", CALLED),
    "mistral, cut": ("mistral", f"[TOOL_CALLS] [{WEATHER}, {{", CALLED),
    "mistral, cut before the arguments": ("mistral", "[TOOL_CALLS]weather[ARGS]", [call(0, "weather", "")]),
    "mistral, broken": ("mistral", "[TOOL_CALLS]weather[ARG]{}", [said("[TOOL_CALLS]weather[ARG]{}")]),
    "mistral, no call": ("mistral", "[1] [TOOL", [said("[1] [TOOL")]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("whole", [True, False])
def test_calls(case: str, whole: bool) -> None:
    name, text, expected = CASES[case]
    assert read(parser(name), *([text] if whole else text)) == expected


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("open", "text", "expected"),
    [
        (False, "<think>\nHm <b>. \n</think>\n\nSo. ", [thought("Hm <b>."), said("So. ")]),
        (False, "\n<think>Hm", [thought("Hm")]),
        (False, "\n <thin", [said("\n <thin")]),
        (False, "\n So <think>", [said("\n So <think>")]),
        (True, "\nHm.</think>So.</think>", [thought("Hm."), said("So.</think>")]),
        (True, "Hm.</thi ", [thought("Hm.</thi ")]),
        (False, "<think>\n\n</think>\n\nSo.", [said("So.")]),
        (True, f"Hm.{H}</think>\n{H}", [thought(f"Hm.{H}"), *CALLED]),
        (False, H, CALLED),
    ],
)
def test_reasoning(open: bool, text: str, expected: list[Part], whole: bool) -> None:
    assert read(parser("hermes", True, open), *([text] if whole else text)) == expected
    alone = make_parser("", "deepseek_r1", open, True)
    if not any(piece.kind is CALL for piece in expected):
        assert alone is not None
        assert read(alone, *([text] if whole else text)) == expected


def test_only_the_first_call() -> None:
    text = f"{H} a <tool_call>{TIME}</tool_call> b"
    assert read(parser("hermes", parallel=False), text) == [*CALLED, said("ab")]


def test_a_call_is_given_while_it_is_written() -> None:
    reader = parser("hermes")
    texts = ["I look.", "\n<tool_call>", '{"name": "weather', '", "arguments": {"ci', 'ty": "Oslo', '"}}\n</tool_call>']
    given = [reader.push(text) for text in texts]
    first = Part(CALL, '{"ci', 0, "weather")
    assert given == [[said("I look.")], [], [], [first], [Part(CALL, 'ty": "Oslo', 0)], [Part(CALL, '"}', 0)]]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[Part]]:
    """An answer in the syntax of `hermes` with thinking, and what it says."""
    words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="<[{"), min_size=1)
    schemaless = st.dictionaries(st.text(), st.recursive(st.integers() | st.text(), lambda v: st.lists(v, max_size=3)))
    text, expected = "", []
    if draw(st.booleans()):
        thoughts = draw(words)
        text, expected = f"<think>\n{thoughts}\n</think>\n", [thought(thoughts)]
    if draw(st.booleans()):
        expected.append(said(draw(words)))
        text += expected[-1].text
    for index in range(draw(st.integers(0, 3))):
        name, arguments = draw(words), json.dumps(draw(schemaless), ensure_ascii=draw(st.booleans()))
        text += f'\n<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
        expected.append(call(index, name, arguments))
    return text, expected


@settings(max_examples=100)
@given(conversation=conversations(), size=st.integers(1, 9))
def test_what_was_meant_is_read(conversation: tuple[str, list[Part]], size: int) -> None:
    text, expected = conversation
    assert read(parser("hermes", True), *(text[i : i + size] for i in range(0, len(text), size))) == expected
