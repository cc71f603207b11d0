"""The grammars of constraints allow exactly the texts that they should, and what would not work is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from allowed_texts import Grammar
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.answer.parsers.thinking import ReasoningFormat
from gateway.grammars.rules import json_rule, with_reasoning
from gateway.schemas.structured import StructuralTag
from services.errors import GrammarError

OBJECT: dict[str, Any] = {"type": "object"}

# --- JSON ----------------------------------------------------------------------------------------------------

scalars = st.sampled_from(
    [
        {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]+$"},
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 1, None, "é"]},
        {"const": {"a": [1, "x"]}},
        {"type": ["string", "null"]},
    ]
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda fields, some, more: {
            "type": "object",
            "properties": fields,
            "required": sorted(fields)[:some],
            "additionalProperties": more,
        },
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.integers(0, 3),
        st.one_of(st.booleans(), inner),
    )
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)
    )
    return objects | arrays | st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner)


schemas = st.recursive(scalars, _nested, max_leaves=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 15) | st.sampled_from(["", "a", "abc", "xyzz", "é", 'q"\n']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(schema=schemas, value=values)
@example(schema={"type": "array", "items": {"const": {"a": [1, "x"]}}}, value=[{"a": [1, "x"]}])
@example(schema={"properties": {"a": {"maxLength": 1}}}, value={"a": "é"})
def test_a_document_is_allowed_if_it_is_valid(grammar: Grammar, schema: Any, value: Any) -> None:
    """Objects have the properties in the order of the schema, and no others before them."""
    fits = jsonschema.Draft202012Validator(schema).is_valid(value)
    text = json.dumps(_ordered(schema, value), ensure_ascii=False)
    if grammar.allows(json_rule(schema), text):
        assert fits, text
    elif fits:
        assert "anyOf" in json.dumps(schema), text  # where an object may have another order
        assert _has_object(value), text


def _ordered(schema: Any, value: Any) -> Any:
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        names = [*(name for name in fields if name in value), *(name for name in value if name not in fields)]
        more = schema.get("additionalProperties")
        return {
            name: _ordered(fields.get(name) or (more if isinstance(more, dict) else {}), value[name]) for name in names
        }
    if isinstance(value, list):
        return [_ordered(schema.get("items", {}), item) for item in value]
    return value


def _has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_object, value)))


def test_json_is_compact(grammar: Grammar) -> None:
    rule = json_rule(OBJECT)
    assert grammar.allows(rule, '{"a": [1, 2], "b": {}}')
    for text in ('{"a":1}', '{ "a": 1}', '{"a": 1,"b": 2}', '{"a": 1} ', '\n{"a": 1}', "[]", ""):
        assert not grammar.allows(rule, text)


def test_a_schema_cannot_change_the_options_of_the_library(grammar: Grammar) -> None:
    """The whitespace would have no bound, and keywords that are not implemented would be ignored."""
    loose = {"whitespace_flexible": True, "lenient": True, "item_separator": ",  "}
    rule = json_rule({"type": "array", "x-guidance": loose, "items": {"type": "array", "x-guidance": loose}})
    assert grammar.allows(rule, "[[], []]")
    assert not grammar.allows(rule, "[[],[]]")
    assert not grammar.allows(rule, "[ []]")
    with pytest.raises(GrammarError, match="uniqueItems"):
        grammar.check.checked(json_rule({"type": "array", "uniqueItems": True, "x-guidance": loose}))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, "not"),
        ({"if": {"type": "string"}}, "if"),
        ({"$ref": "https://example.com/schema.json"}, "https://example.com/schema.json"),
        ({"$ref": "other.json#/a"}, "other.json"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$schema": "https://example.com/dialect"}, "dialect"),
        ({"type": "word"}, "word"),
        ({"type": "string", "format": 5}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "Unsatisfiable"),
        ({"enum": []}, "empty"),
        ({"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "string"}, "draft 4"),
        ({"anyOf": [{"type": "object", "minProperties": 2}]}, "minProperties"),  # `{"a": 1, "a": 2}` would be allowed
        ({"minProperties": 2, "required": ["a"]}, "minProperties"),
        ({"items": {"properties": {f"p{i}": {} for i in range(491)}}}, "491 of one object"),
    ],
)
def test_what_the_library_does_not_implement_is_refused(grammar: Grammar, schema: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        grammar.check.checked(json_rule(schema))


def test_numbers_of_properties(grammar: Grammar) -> None:
    named = {"type": "object", "properties": {"a": {}, "minProperties": {"type": "null"}}}
    rule = json_rule(named | {"required": ["a", "minProperties"], "minProperties": 2})
    assert grammar.allows(rule, '{"a": 1, "minProperties": null}')
    assert not grammar.allows(rule, '{"a": 1}')
    assert not grammar.allows(rule, '{"a": 1, "a": 1}')
    assert not grammar.allows(json_rule(OBJECT | {"minProperties": 1}), "{}")


def test_references_and_older_dialects(grammar: Grammar) -> None:
    tree = {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}}, "additionalProperties": False}
    assert grammar.allows(json_rule({"$defs": {"t": tree}, "$ref": "#/$defs/t"}), '{"c": {"c": {}}}')
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}
    assert grammar.allows(json_rule(old | {"type": "integer"}), "4")
    assert not grammar.allows(json_rule(old | {"type": "integer"}), "3")


@pytest.mark.parametrize(
    ("numbers", "accepted"),
    [
        ([3600], True),
        ([0.01, 5, 1_000_000], True),
        ([1_000_003], False),  # compiling would take minutes
        ([10_007], False),
        ([2, 3, 5, 7, 11, 13, 17, 19], False),
        ([1.000003], False),
    ],
)
def test_multiples_are_bounded(grammar: Grammar, numbers: list[float], accepted: bool) -> None:
    schemas = [{"type": "number", "multipleOf": number} for number in numbers]
    lark = "start: " + " | ".join("%json " + json.dumps(schema) for schema in schemas)
    hidden = lark.replace("multipleOf", "multi\\u0070leOf")
    for rule in (json_rule({"anyOf": schemas}), grammar.rule("grammar", lark), grammar.rule("grammar", hidden)):
        if accepted:
            grammar.check.checked(rule)
        else:
            with pytest.raises(GrammarError, match="multipleOf"):
                grammar.check.checked(rule)


# --- other constraints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "allowed", "others"),
    [
        ("regex", r"a/b\/\d", ["a/b/1"], ["a/b", "a/b/x"]),
        ("regex", r"\\/[/]", ["\\//"], ["//"]),
        ("regex", "^a|b$", ["a", "b"], ["ab", ""]),
        ("regex", "a\nb", ["a\nb"], ["ab"]),
        ("regex", "", [""], ["a"]),
        ("choice", ["a", "ab", "a", 'é"\\\n', "😀"], ["a", "ab", 'é"\\\n', "😀"], ["", "b", "abc"]),
        ("choice", [""], [""], ["a"]),
        ("grammar", 'start: "a" x\nx: /[0-9]+/', ["a1", "a12"], ["a", "1"]),
        ("grammar", 'root ::= "a" [0-9]+ x?\nx ::= "c" | "d" x', ["a1", "a12dc"], ["a", "a1d"]),
        ("grammar", "start: x\nx: %json {}", ["1", '{"a":1}'], ["a"]),
    ],
)
def test_other_constraints(grammar: Grammar, kind: str, value: Any, allowed: list[str], others: list[str]) -> None:
    rule = grammar.rule(kind, value)
    assert [text for text in [*allowed, *others] if grammar.allows(rule, text)] == allowed


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("regex", "a\\", "backslash"),
        ("regex", "a\\\\\\", "backslash"),
        ("regex", "a(", "regex"),
        ("regex", "a(?=b)", "look-ahead"),
        ("regex", r"[^\s\S]", "no text"),
        ("grammar", "start: x", "x"),
        ("grammar", 'begin: "a"', "begin"),
        ("grammar", "(((", "Lark"),
        ("grammar", "root ::= " + "(" * 5000, "Lark"),
        ("grammar", 'start: "a" <[99999]>', "99999"),
        ("grammar", "\n" * 50_000, "50,000 lines"),  # converting would take a minute
        ("regex", "b" * 300_000, "bytes"),
    ],
)
def test_what_is_no_grammar_is_refused(grammar: Grammar, kind: str, value: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        grammar.check.checked(grammar.rule(kind, value))


def test_structural_tags(grammar: Grammar) -> None:
    """A trigger that is spelled like a special token is this token."""
    structures = [
        {"begin": "<f=a>", "schema": OBJECT, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<system>go ", "schema": {"type": "boolean"}, "end": ""},
    ]
    tag = StructuralTag.model_validate({"structures": structures, "triggers": ["<f", "<system>"]})
    rule = grammar.rule("structural_tag", tag)
    for text in ("", "hello", "x <f=a>{}</f> y<f=b>12</f>", "x<system>go true and"):
        assert grammar.allows(rule, text), text
    for text in ("x <f", "x <f=c>{}</f>", "<f=b>{}</f>", "<f=a>{}", "x<system>stop", "<user>"):
        assert not grammar.allows(rule, text), text


# --- thinking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["</think>", "<system>"])  # text, and a special token
def test_thinking_is_free_and_the_answer_is_not(grammar: Grammar, end: str) -> None:
    tables = grammar.model.tokenizer.tables
    opened = with_reasoning(json_rule(OBJECT), tables, True, ReasoningFormat(end=end))
    closed = with_reasoning(json_rule(OBJECT), tables, False, ReasoningFormat(end=end))
    free = 'so {"a":1} <b> \n\n' + end
    for rule in (opened, closed):
        assert grammar.allows(rule, f"<think>{free}\n\n{{}}")
        assert not grammar.allows(rule, f"<think>{free}\n\nyes")
        assert not grammar.allows(rule, f"<think>{free}{end}{{}}")
        assert not grammar.allows(rule, f"<think>{free}")
        assert not grammar.allows(rule, f"<think>a<user>b{end}{{}}")
    assert grammar.allows(opened, f"{free}{{}}")
    assert grammar.allows(opened, f"{end}{{}}")
    assert not grammar.allows(opened, "{}")
    assert grammar.allows(closed, "{}")
    assert not grammar.allows(closed, f"{free}{{}}")


def test_thinking_goes_with_grammars_that_have_names_of_their_own(grammar: Grammar) -> None:
    own = grammar.rule("grammar", 'start: thinking TEXT\nthinking: "a"\nTEXT: /[0-9]+/')
    rule = with_reasoning(own, grammar.model.tokenizer.tables, True, ReasoningFormat())
    assert grammar.allows(rule, "hm</think>a1")
    assert not grammar.allows(rule, "hm</think>b1")
