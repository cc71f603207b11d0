"""The grammars of calls: texts that are drawn at random from their masks are calls of the tools, valid by schema."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from gateway.answer.parsers.formats import CALL_FORMATS, THINK
from gateway.answer.parsers.harmony import MARKS as HARMONY
from gateway.answer.parsers.registry import make_parser
from gateway.answer.parts import PartKind
from gateway.grammars.rules import json_rule, with_reasoning
from gateway.grammars.tools import closed, tool_rule
from gateway.tools import Tool, ToolChoice, ToolUse
from services.errors import GrammarError
from services.grammar import Grammars
from services.text import TextTables

BYTES = [bytes([i]) for i in range(256)]
WORDS = [b'{"name": "', b'"}', b"}\n</tool", b"_call>", b', "', b": ", b"]", b"so "]
MARKS = [b"[TOOL_CALLS]", b"<|python_tag|>", "<｜tool▁call▁begin｜>".encode(), "<｜tool▁sep｜>".encode()]
MARKS += [b'<|"|>', b"</arg_value>", b"<|tool_call_argument_begin|>", b"[ARGS]"]
MARKS += [mark.encode() for mark in HARMONY]  # special tokens
ENDS = [b"</parameter>", b"\n</parameter>", b"</function>", b"</invoke>", b"</tool_call>", b"</arg_key>", b'">', b">\n"]
ENDS += ["</｜DSML｜parameter>".encode(), "</｜DSML｜invoke>".encode()]
WORDS += ENDS
SPELLED = [*BYTES, *WORDS, *MARKS, b"<eos>"]
EOS = len(SPELLED) - 1
LONGEST = 2_000  # tokens of a text that is drawn
SPECIAL = frozenset(range(len(BYTES) + len(WORDS), len(SPELLED)))
TABLES = TextTables(
    [b"" if i in SPECIAL else text for i, text in enumerate(SPELLED)], SPECIAL, TextTables(SPELLED, frozenset())
)
GRAMMARS = Grammars(TABLES, len(SPELLED), [EOS])
CLOSING = {
    b'"',
    b"}",
    b"]",
    b")",
    b'"}',
    b"\n",
    b"<eos>",
    b"</arg_value>",
    b'<|"|>',
    *ENDS,
}  # without a liking for them, texts would be long

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 9},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", "The weather.", CITY, strict=True), Tool("weather_2", None, CITY), Tool("time")]
USES = {
    "required": ToolUse(TOOLS, ToolChoice("required")),
    "required, one call": ToolUse(TOOLS, ToolChoice("required"), parallel=False),
    "a name": ToolUse(TOOLS, ToolChoice.of_name("weather_2")),
    "two allowed": ToolUse(TOOLS, ToolChoice("required", ("time", "weather"))),
}
FAMILIES = ("hermes", "llama3_json", "mistral", "smollm2")  # whose calls are JSON objects
Call = tuple[str, dict[str, Any]]


def grammar(use: ToolUse, family: str, answer: Any = None) -> str:
    rule = tool_rule(use, family, TABLES, answer)
    assert rule is not None
    return rule.grammar()


def drawn(grammar: str, rng: random.Random, begun: Sequence[int] = ()) -> str:
    """A text of the grammar that begins with the tokens `begun`, with special tokens spelled out."""
    matcher, tokens = GRAMMARS.matcher(grammar), list(begun)
    matcher.consume(tokens)
    while not matcher.ended:
        assert len(tokens) < LONGEST, "the text does not end"
        mask = int.from_bytes(matcher.mask(), "little")
        allowed = [id for id in range(len(SPELLED)) if mask >> id & 1]
        closing = [id for id in allowed if SPELLED[id] in CLOSING]
        tokens.append(rng.choice(closing if closing and rng.random() < 0.4 else allowed))
        matcher.consume(tokens[-1:])
    return b"".join(SPELLED[id] for id in tokens if id != EOS).decode()


def tokens_of(text: str) -> list[int]:
    """The tokens of a text: marks that are special tokens, and bytes."""
    tokens: list[int] = []
    for piece in re.split(f"({'|'.join(re.escape(mark.decode()) for mark in MARKS)})", text):
        tokens += [SPELLED.index(piece.encode())] if piece.encode() in MARKS else piece.encode()
    return tokens


def accepts(grammar: str, text: str) -> bool:
    """Whether `text` is a whole text of the grammar. Marks that are special tokens must be these."""
    matcher = GRAMMARS.matcher(grammar)
    try:
        matcher.consume(tokens_of(text))
    except GrammarError:
        return False
    return matcher.complete


def calls_of(family: str, text: str, types: dict[str, dict[str, str]] | None = None) -> list[Call]:
    """The calls that the family's parser reads in a text that has nothing else."""
    parser = make_parser(family, "", False, True, types)
    assert parser is not None
    names, arguments = list[str](), list[str]()
    for piece in [*parser.push(text), *parser.finish()]:
        assert piece.kind is PartKind.CALL, piece
        if piece.call == len(names):
            assert piece.name is not None
            names.append(piece.name)
            arguments.append("")
        arguments[piece.call] += piece.text
    return list(zip(names, map(json.loads, arguments), strict=True))


def written(family: str, *calls: Call) -> str:
    """Calls as templates of the family write them."""
    objects = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
    match family:
        case "hermes":
            return "\n".join(f"<tool_call>\n{object}\n</tool_call>" for object in objects)
        case "llama3_json":
            return "; ".join(object.replace("arguments", "parameters") for object in objects)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
    return f"<tool_call>[{', '.join(objects)}]</tool_call>"


RIGHT: Call = ("weather", {"city": "né", "days": -3, "unit": "C"})
WRONG: Call = ("weather", {"city": 5, "unit": "C"})
LOOSE: Call = ("weather_2", {"anything": [1]})
TIME: Call = ("time", {})


OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        (OPEN, True),
        (OPEN | {"required": ["a"]}, True),
        (OPEN | {"additionalProperties": True}, False),
        (OPEN | {"additionalProperties": {"type": "string"}}, False),
        (OPEN | {"required": ["b"]}, False),
        (OPEN | {"allOf": [{"properties": {"b": {}}}]}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {}}, True),
    ],
)
def test_a_forced_call_has_only_properties_that_are_named(schema: dict[str, Any], is_closed: bool) -> None:
    forced = grammar(ToolUse([Tool("f", None, schema)], ToolChoice("required")), "hermes")
    assert accepts(forced, written("hermes", ("f", {"a": 1, "b": "c"}))) is not is_closed


def test_objects_are_closed_at_any_depth() -> None:
    inner = {"anyOf": [OPEN, {"type": "array", "items": OPEN}]}
    made = closed({"type": "object", "properties": {"x": inner, "y": {"$ref": "#/$defs/o"}}, "$defs": {"o": OPEN}})
    done = OPEN | {"additionalProperties": False}
    assert made["properties"]["x"] == {"anyOf": [done, {"type": "array", "items": done}]}
    assert made["$defs"] == {"o": done}
    assert made["additionalProperties"] is False
    wrong = {"type": "object", "properties": 1, "required": [[]]}
    assert closed(wrong) == wrong  # it is refused later


def test_a_call_that_is_not_forced_may_have_any_properties() -> None:
    use = ToolUse([Tool("f", None, OPEN), Tool("g", None, OPEN, strict=True)])
    assert accepts(grammar(use, "hermes"), written("hermes", ("f", {"a": 1, "b": "c"})))
    assert not accepts(grammar(use, "hermes"), written("hermes", ("g", {"a": 1, "b": "c"})))


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_calls_are_valid(family: str, name: str) -> None:
    use, rng = USES[name], random.Random(f"{family}{name}")
    schemas = {tool.name: tool.schema for tool in use.callable}
    text_of = grammar(use, family)
    for _ in range(12):
        text = drawn(text_of, rng)
        calls = calls_of(family, text)
        assert written(family, *calls) == text or "\\" in text or "-0" in text  # written in several ways
        for called, arguments in calls:
            jsonschema.validate(arguments, schemas[called])
        assert 1 <= len(calls) <= (1 if family == "llama3_json" else use.max_calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_required_calls_follow_all_schemas(family: str) -> None:
    required = grammar(ToolUse(TOOLS, ToolChoice("required")), family)
    assert accepts(required, written(family, RIGHT))
    assert accepts(required, written(family, TIME))
    assert accepts(required, written(family, RIGHT, TIME, RIGHT)) == (family != "llama3_json")
    assert not accepts(required, written(family, WRONG))
    assert not accepts(required, written(family, LOOSE))
    assert not accepts(required, written(family, ("other", {})))
    for text in ("", "It rains.", "It rains.\n" + written(family, RIGHT), written(family, RIGHT) + " It"):
        assert not accepts(required, text)
    one = grammar(ToolUse(TOOLS, ToolChoice("required"), parallel=False), family)
    assert accepts(one, written(family, RIGHT))
    assert not accepts(one, written(family, RIGHT, RIGHT))
    assert not accepts(grammar(USES["a name"], family), written(family, TIME))


@pytest.mark.parametrize("family", FAMILIES)
def test_free_calls_follow_the_schemas_of_strict_tools(family: str) -> None:
    free = grammar(ToolUse(TOOLS), family)
    for text in ("", "It rains.", "a { b <tool_cal", written(family, RIGHT), written(family, LOOSE)):
        assert accepts(free, text), text
    assert accepts(free, "It rains.\n" + written(family, RIGHT))
    assert accepts(free, written(family, RIGHT, LOOSE)) == (family != "llama3_json")
    for call in (WRONG, ("other", {})):
        assert not accepts(free, written(family, call))
        assert family == "llama3_json" or not accepts(free, "It rains.\n" + written(family, call))
    allowed = grammar(ToolUse(TOOLS, ToolChoice("auto", ("time",))), family)
    assert accepts(allowed, written(family, TIME))
    assert not accepts(allowed, written(family, RIGHT))


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_or_an_answer_in_a_format(family: str) -> None:
    answer = json_rule({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})
    either = grammar(ToolUse(TOOLS), family, answer)
    for text in ('{"a": 1}', written(family, RIGHT), written(family, LOOSE)):
        assert accepts(either, text), text
    for text in ("It rains.", '{"b": 1}', written(family, WRONG)):
        assert not accepts(either, text), text
    assert not accepts(grammar(USES["required"], family, answer), '{"a": 1}')


@pytest.mark.parametrize("opened", [True, False], ids=["in thinking", "before it"])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_in_thinking_are_not_calls(family: str, opened: bool) -> None:
    rule = tool_rule(ToolUse(TOOLS), family, TABLES, None, thinks=None if opened else THINK)
    assert rule is not None
    free, begin = with_reasoning(rule, TABLES, opened, THINK).grammar(), "" if opened else "<think>"
    wrong, right = written(family, WRONG), written(family, RIGHT)
    if CALL_FORMATS[family].begin.encode() in MARKS:  # thinking has no special tokens
        thoughts = ["Hm."]
    else:
        thoughts = ["", "Hm.", wrong, f"I call {wrong} or {right}", "<tool_call>"]
    for thought in thoughts:
        thinking = f"{begin}{thought}</think>"
        for text in ("", "It rains.", right):
            assert accepts(free, thinking + text), thinking + text
        assert not accepts(free, thinking + wrong), thinking + wrong
        assert not accepts(free, thinking + "\n\n" + wrong)
    if not opened:
        for text in ("", "It rains <think>", "<thin", right):
            assert accepts(free, text)
        assert not accepts(free, wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_texts_with_thinking_have_right_calls(family: str) -> None:
    rule, rng = tool_rule(ToolUse(TOOLS), family, TABLES, None, thinks=THINK), random.Random(family)
    assert rule is not None
    text_of, schemas, seen = (
        with_reasoning(rule, TABLES, False, THINK).grammar(),
        {tool.name: tool for tool in TOOLS},
        0,
    )
    mark = CALL_FORMATS[family].begin.encode() or b"{"
    begun = [SPELLED.index(mark)] if mark in MARKS else list(mark)
    for lead in (b"<think>so </think>", b"<think><tool_call>{so</think>", b""):
        for _ in range(3):
            parser = make_parser(family, "qwen3", False, True)
            assert parser is not None
            text = drawn(text_of, rng, [*lead, *begun])
            calls: dict[int, list[str]] = {}
            for piece in [*parser.push(text), *parser.finish()]:
                if piece.kind is PartKind.CALL:
                    calls.setdefault(piece.call, [piece.name or ""]).append(piece.text)
            for name, *arguments in calls.values():
                seen += 1
                if schemas[name].strict:
                    jsonschema.validate(json.loads("".join(arguments)), schemas[name].schema)
    assert seen


def test_what_needs_no_grammar() -> None:
    answer = json_rule(True)
    for use in (ToolUse(), ToolUse(TOOLS, ToolChoice("none")), ToolUse(TOOLS[1:])):
        assert tool_rule(use, "hermes", TABLES, None) is None
    assert tool_rule(ToolUse(TOOLS, ToolChoice("none")), "hermes", TABLES, answer) == answer
