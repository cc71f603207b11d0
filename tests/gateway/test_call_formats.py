"""Each format: recorded calls are read back however they are cut, and its grammar allows them as they are."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_calls import CALLS, NOW, SCHEMA, WEATHER, Recorded, table
from test_parsers import read
from test_tool_grammars import TABLES, accepts, calls_of, drawn, grammar, tokens_of

from gateway.answer.parameter_types import types_of
from gateway.answer.parsers.call_format import Xml
from gateway.answer.parsers.formats import CALL_FORMATS, REASONING_FORMATS
from gateway.answer.parsers.registry import REASONING_PARSERS, make_parser
from gateway.answer.parts import CALL, TEXT, Parser, Part
from gateway.grammars.tools import tool_rule
from gateway.tools import Tool, ToolChoice, ToolUse
from services.errors import GrammarError

TOOLS = [Tool("weather", None, SCHEMA), Tool("now")]
TYPES = types_of(TOOLS)
FORMATS = sorted(CALL_FORMATS)


def parser(name: str) -> Parser:
    made = make_parser(name, "", False, True, TYPES)
    assert made is not None
    return made


def meant(recorded: Recorded) -> list[tuple[str, Any]]:
    return [("weather", WEATHER)] if recorded.single else [("weather", WEATHER), ("now", NOW)]


def calls_in(parts: list[Part]) -> list[tuple[str, Any]]:
    return [(part.name or "", json.loads(part.text)) for part in parts if part.kind is CALL]


def test_each_format_is_recorded() -> None:
    assert CALLS.keys() == CALL_FORMATS.keys()


def test_the_document_has_the_table_of_formats() -> None:
    document = Path(__file__).parents[2] / "docs" / "api.md"
    assert table() in document.read_text(), f"the table in {document.name} is to be:\n{table()}"


@pytest.mark.parametrize("name", FORMATS)
def test_recorded_calls_are_read_however_they_are_cut(name: str) -> None:
    recorded, form = CALLS[name], CALL_FORMATS[name]
    before, after = ("" if form.bare else "I look né 🐳.\n\n"), ("" if form.single or not form.end else "\nSo.")
    text = before + recorded.text + after
    whole = read(parser(name), text)
    assert calls_in(whole) == meant(recorded)
    said = [part.text for part in whole if part.kind is TEXT]
    assert said == [piece.strip() for piece in (before, after) if piece]
    assert read(parser(name), *text) == whole
    for place in range(1, len(text)):
        assert read(parser(name), text[:place], text[place:]) == whole, text[:place]


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_call_is_the_same_however_its_text_was_cut(name: str) -> None:
    """The answer can end at each place."""
    text = CALLS[name].text
    for end in range(len(text)):
        parts = read(parser(name), text[:end])
        assert read(parser(name), *text[:end]) == parts, text[:end]
        assert [part.name for part in parts if part.kind is CALL] in ([], ["weather"], ["weather", "now"])


@pytest.mark.parametrize("name", FORMATS)
def test_a_grammar_allows_what_templates_write(name: str) -> None:
    forced = grammar(ToolUse(TOOLS, ToolChoice("required")), name)
    text = CALLS[name].text
    if "'" in text:  # a grammar writes strings in double quotes
        text = text.replace("'né \"x\" </b>'", '"né \\"x\\" </b>"').replace("'", '"')
    assert accepts(forced, text)
    assert not accepts(forced, f"So. {text}")
    assert not accepts(forced, text.replace("weather", "weather_2"))
    assert not accepts(forced, text.replace("days", "hours"))


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 9},
        "unit": {"enum": ["C", "F", "a b"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]?$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "ratio": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "many": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "inner": {"$ref": "#/$defs/inner"},
        "either": {"anyOf": [{"type": "integer"}, {"const": "all"}, {"type": "null"}]},
    },
    "required": ["text", "count", "inner"],
    "$defs": {
        "inner": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", 1, None]}},
            "required": ["b"],
            "additionalProperties": False,
        }
    },
    "additionalProperties": False,
}
DRAWN = [Tool("first", None, STRICT, strict=True), Tool("second"), Tool("third", None, {"type": "object"})]


@pytest.mark.parametrize("name", FORMATS)
def test_drawn_calls_are_read_and_valid(name: str) -> None:
    schemas, seen = {tool.name: tool.schema for tool in DRAWN}, 0
    forced, rng = grammar(ToolUse(DRAWN, ToolChoice("required"), parallel=False), name), random.Random(name)
    for _ in range(24):
        for called, arguments in calls_of(name, drawn(forced, rng), types_of(DRAWN)):
            jsonschema.validate(arguments, schemas[called])
            seen += called == "first"
    assert seen


@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_are_free_are_read(name: str) -> None:
    """With a strict tool beside them, calls of other tools have any arguments."""
    use = ToolUse([DRAWN[0], Tool("weather", None, SCHEMA)], ToolChoice("auto", ("weather",)))
    text_of, rng, form = grammar(use, name), random.Random(name), CALL_FORMATS[name]
    for _ in range(6):
        parts = read(parser(name), drawn(text_of, rng, tokens_of(form.begin or form.bare)))
        assert calls_in(parts)
        assert all(isinstance(arguments, dict) for _, arguments in calls_in(parts))
        assert all(part.name == "weather" for part in parts if part.kind is CALL)


def test_no_call_without_its_mark_passes_by_a_strict_tool() -> None:
    free = grammar(ToolUse([Tool("f", None, SCHEMA, strict=True)]), "qwen3_coder")
    assert accepts(free, "So <function is.")
    assert not accepts(free, "So.\n<function=f>\n</function>")


BITS = sorted({mark for form in (*CALL_FORMATS.values(), *REASONING_FORMATS.values()) for mark in form.marks})
BITS += ["weather", "now", "<function=", "<parameter=city>", "<parameter=days>", "</function>", '<invoke name="', '">']
BITS += [
    "functools",
    "functions.",
    "call:",
    ":0",
    *"()[]{}'\"\\=,:; \n<",
    "\\u00e9",
    '"\\ud83d',
    "null}",
    "|>",
    "```json\n",
]
BITS += ["city", "2", "true", "None", '{"name": "now", "arguments": {}}', '{"name": "a", "arguments": ', "né", "🐳"]


@settings(max_examples=300)
@given(
    name=st.sampled_from([*FORMATS, "openai"]),
    reasoning=st.sampled_from([*REASONING_PARSERS, ""]),
    open=st.booleans(),
    bits=st.lists(st.sampled_from(BITS), max_size=14),
    recorded=st.booleans(),
    data=st.data(),
)
def test_any_cut_gives_the_same(
    name: str, reasoning: str, open: bool, bits: list[str], recorded: bool, data: st.DataObject
) -> None:
    text = "".join(bits)
    if recorded and name in CALLS:  # damaged somewhere
        base, place = CALLS[name].text, data.draw(st.integers(0, len(CALLS[name].text)))
        text = base[:place] + text + base[place + data.draw(st.integers(0, 8)) :]

    def parser() -> Parser:
        made = make_parser(name, reasoning, open, True, TYPES)
        assert made is not None
        return made

    whole = read(parser(), text)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=6))})
    assert read(parser(), *(text[a:b] for a, b in pairwise(cuts))) == whole
    assert read(parser(), *text) == whole
    calls = [part for part in whole if part.kind is CALL]
    assert [part.call for part in calls] == list(range(len(calls)))
    assert all(part.name for part in calls)
    assert 3 * len(whole) <= 3 + len(text), "the numbers of pieces rely on it"
    for part in whole:
        part.text.encode()
    kept = iter("".join(text.split()))
    told = "".join("".join(part.text for part in whole if part.kind is not CALL).split())
    assert all(character in kept for character in told), "content and reasoning are in the text, in this order"
    if not calls and not reasoning and name != "openai":
        assert "".join(part.text for part in whole).strip() == text.strip()


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "+5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "string"}, "5", "5"),
        ({}, "5", "5"),
        ({"type": "number"}, "1.50", 1.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": ["string", "integer"]}, "5a", "5a"),
        ({"type": "integer"}, "null", None),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "['a', None]", ["a", None]),
        ({"type": "object"}, '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ({"type": "object"}, "{'a': NaN}", "{'a': NaN}"),
        ({"$ref": "#/$defs/x"}, "[1]", [1]),
        ({"enum": [1, 2]}, "2", 2),
        ({"type": "array"}, "[" * 2000, "[" * 2000),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2"])
def test_values_between_tags_have_the_types_of_the_schema(name: str, schema: Any, text: str, expected: Any) -> None:
    tool = Tool("f", None, {"type": "object", "properties": {"a": schema}, "$defs": {"x": {"type": "array"}}})
    written = {
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>",
        "glm45": f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{text}</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    }[name]
    made = make_parser(name, "", False, True, types_of([tool]))
    assert made is not None
    assert calls_in(read(made, written)) == [("f", {"a": expected})]


@pytest.mark.parametrize("value", ["", "\n", "\n\n", "\n  x = 1\n", "\n\nx\n\n", " x ", "\tné 🐳 </b>", "a < b\n"])
@pytest.mark.parametrize("name", [name for name in FORMATS if isinstance(CALL_FORMATS[name].call, Xml)])
def test_a_string_between_tags_is_read_as_it_is(name: str, value: str) -> None:
    form = CALL_FORMATS[name]
    assert isinstance(form.call, Xml)
    written = form.call.parameter.replace("{key}", "a").replace("{is_string}", "true").replace("{value}", value)
    call = form.call.call.replace("{name}", "f") + written + form.call.close
    text = f"{form.begin}{form.before}{call}{form.after}{form.end}"
    whole = read(parser(name), text)
    assert calls_in(whole) == [("f", {"a": value})]
    assert read(parser(name), *text) == whole
    for place in range(1, len(text)):
        assert read(parser(name), text[:place], text[place:]) == whole, text[:place]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[f(a='it\\'s', b=\"\\u00e9\\x41\\n\")]", {"a": "it's", "b": "éA\n"}),
        ("[f(a='''x'y''', b='')]", {"a": "x'y", "b": ""}),
        ("[f(a=(1, 2,), b={'k': [True, {}]}, c=-1.5e3)]", {"a": [1, 2], "b": {"k": [True, {}]}, "c": -1500.0}),
        ("[f(a=Paris, b=New York)]", {"a": "Paris", "b": "New York"}),
        ("[f( a = 1 , b = 'x' )]", {"a": 1, "b": "x"}),
        ("[f('x', a=1)]", {"a": 1}),
        ("[f(a='\\ud83d\\udc33')]", {"a": "🐳"}),
        ("[f(a={1: 2})]", {"a": {"1": 2}}),
    ],
)
def test_literals_of_python(text: str, expected: Any) -> None:
    made = make_parser("pythonic", "", False, True)
    assert made is not None
    assert calls_in(read(made, text)) == [("f", expected)]
    assert calls_in(read(parser("pythonic"), *text)) == [("f", expected)]


@pytest.mark.parametrize("text", ["[1] See there.", "[see](url)", "[f, g]", "[", "Call [f(a=1)]", '["a"]'])
def test_a_list_is_no_call(text: str) -> None:
    assert read(parser("pythonic"), text) == [Part(TEXT, text)]


BROKEN = {
    "qwen, a value without its end": (
        "qwen3_coder",
        "<tool_call><function=now><parameter=a>\nx\n<parameter=b>y</function></tool_call>So.",
        [("now", {"a": "x", "b": "y"})],
        "So.",
    ),
    "qwen, without ends": ("qwen3_coder", "<tool_call><function=now></tool_call>", [("now", {})], ""),
    "qwen, no call": ("qwen3_coder", "<tool_call>now</tool_call>", [], "<tool_call>now</tool_call>"),
    "qwen, text within": (
        "qwen3_coder",
        "<tool_call>\n<function=now>\n so <b> <parameter=a>1</parameter> and\n</function>\n</tool_call>",
        [("now", {"a": "1"})],
        "",
    ),
    "qwen, JSON instead": ("qwen3_coder", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', [("now", {})], ""),
    "qwen, no mark": (
        "qwen3_coder",
        "So.\n\n<function=now>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nNow.",
        [("now", {"a": "1"})],
        "So.Now.",
    ),
    "qwen, no mark and no call": ("qwen3_coder", "Write <function= name>.", [], "Write <function= name>."),
    "qwen, a bracket": (
        "qwen3_coder",
        "<tool_call>{<function=now></function></tool_call>",
        [("now", {})],
        "<tool_call>{",
    ),
    "qwen, no mark, twice": (
        "qwen3_coder",
        "<function=now></function><function=now></function>",
        [("now", {}), ("now", {})],
        "",
    ),
    "glm, a sentence": ("glm45", "<tool_call>so it is</tool_call>", [], "<tool_call>so it is</tool_call>"),
    "kimi, no prefix": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        [("now", {})],
        "",
    ),
    "kimi, spaces": (
        "kimi_k2",
        "<|tool_calls_section_begin|> <|tool_call_begin|> functions.now:0 <|tool_call_argument_begin|> {} "
        "<|tool_call_end|> <|tool_calls_section_end|>",
        [("now", {})],
        "",
    ),
    "kimi, no index": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now<|tool_call_argument_begin|>{}<|tool_call_end|>",
        [("now", {})],
        "",
    ),
    "deepseek, no fence": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("now", {})],
        "",
    ),
    "deepseek, a fence twice": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n``````<｜tool▁call▁end｜>",
        [("now", {})],
        "```<｜tool▁call▁end｜>",
    ),
    "mistral, an id": ("mistral_v11", "[TOOL_CALLS]now[CALL_ID]aB3dE6gH9[ARGS]{}", [("now", {})], ""),
    "phi, text after the list": (
        "phi4_mini_json",
        'functools[{"name": "now", "arguments": {}}] So.',
        [("now", {})],
        "So.",
    ),
    "pythonic, text after the list": ("pythonic", "[now()]\n\nSo [1].", [("now", {})], "So [1]."),
    "mistral, text after the list": ("mistral", '[TOOL_CALLS] [{"name": "now"}]So.', [("now", {})], "So."),
    "gemma, a stray bracket": ("gemma4", "<|tool_call>call:now{}}<tool_call|>", [("now", {})], ""),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken(case: str) -> None:
    name, text, expected, said = BROKEN[case]
    parts = read(parser(name), text)
    assert calls_in(parts) == expected
    assert "".join(part.text for part in parts if part.kind is TEXT) == said
    assert read(parser(name), *text) == parts


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x^y"}}},
        {"type": "object", "allOf": [{"properties": {"a": {}}}]},
    ],
)
def test_what_tags_cannot_enforce_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        grammar(ToolUse([Tool("f", None, schema)], ToolChoice("required")), "qwen3_coder")
    assert tool_rule(ToolUse([Tool("f", None, schema)]), "qwen3_coder", TABLES, None) is None
