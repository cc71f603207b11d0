"""References, recursion and formats in schemas: what has a meaning is served, what has no end is refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
from allowed_texts import Grammar
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grammars.rules import json_rule
from gateway.grammars.tools import closed
from services.errors import GrammarError

OBJECT: dict[str, Any] = {"type": "object"}
NULL: dict[str, Any] = {"type": "null"}
SELF: dict[str, Any] = {"$ref": "#"}


def required(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# --- references ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["$defs", "definitions", "properties", "components/schemas"])
@pytest.mark.parametrize(
    "name",
    ["A B", "ä", "日本", "A%B", "A%20B", "A/B", "A~B", "A~1B", 'A"B', "a#b", "Page[Item]", "Page<Item>", "", "A\\B"],
)
def test_names_are_found_however_they_are_written(grammar: Grammar, holder: str, name: str) -> None:
    """As in a URI, and as they are."""
    path = f"{holder}/" + name.replace("~", "~0").replace("/", "~1")
    for ref in (path, quote(path, safe="/~")):
        schema: dict[str, Any] = {"type": "array", "items": {"$ref": f"#/{ref}"}}
        outer, _, inner = holder.partition("/")
        schema[outer] = {inner: {name: NULL}} if inner else {name: NULL}
        rule = json_rule(schema)
        assert grammar.allows(rule, "[null]")
        assert not grammar.allows(rule, "[1]")


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "T", "type": "array", "items": {"$ref": "T"}},
        {"$id": "https://example.com/a/b", "$ref": "c", "$defs": {"C": {"$id": "c", "type": "array"}}},
        {"$ref": "#list", "$defs": {"C": {"$anchor": "list", "type": "array"}}},
        {"$id": "urn:a:b", "$ref": "#/$defs/C", "$defs": {"C": {"type": "array"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#l",
            "definitions": {"C": {"$id": "#l", "type": "array"}},
        },
    ],
)
def test_names_that_schemas_give_themselves(grammar: Grammar, schema: dict[str, Any]) -> None:
    assert grammar.allows(json_rule(schema), "[]")
    assert not grammar.allows(json_rule(schema), "{}")


@pytest.mark.parametrize("ref", ["#/$defs/A C", "#/$defs/A%20C", "#/$defs/a b", "#/$defs/A B/items/0", "#/0"])
def test_a_reference_to_nothing_is_named_with_its_place(ref: str) -> None:
    with pytest.raises(GrammarError) as refused:
        json_rule({"$defs": {"A B": NULL}, "properties": {"x": {"items": {"$ref": ref}}}})
    assert f"'$ref': '{ref}' at '#/properties/x/items'" in str(refused.value)


def test_arguments_of_calls_are_closed_wherever_their_schemas_are() -> None:
    inner = {"type": "object", "properties": {"a": NULL}}
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/parts/X Y"}, "y": {"const": inner}},
        "parts": {"X Y": dict(inner)},
    }
    made = closed(schema)
    assert made["parts"]["X Y"] == inner | {"additionalProperties": False}
    assert made["properties"]["y"] == {"const": inner}


# --- recursion -----------------------------------------------------------------------------------------------

ENDLESS: dict[str, tuple[Any, str]] = {
    "itself": (SELF, "#"),
    "a circle of references": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        "#/$defs/A",
    ),
    "a required property": (required(a=SELF), "#/properties/a"),
    "mutual": (
        {
            "$ref": "#/$defs/A",
            "$defs": {"A": required(b={"$ref": "#/$defs/B"}), "B": required(a={"$ref": "#/$defs/A"})},
        },
        "#/$defs/A/properties/b",
    ),
    "items": ({"type": "array", "items": SELF, "minItems": 1}, "#/items"),
    "items after the first": ({"type": "array", "prefixItems": [NULL], "items": SELF, "minItems": 2}, "#/items"),
    "first items": ({"type": "array", "prefixItems": [SELF], "minItems": 1}, "#/prefixItems/0"),
    "items of draft 7": ({"type": "array", "items": [NULL, SELF], "minItems": 2}, "#/items/1"),
    "properties without names": (
        {"type": "object", "additionalProperties": SELF, "required": ["x"]},
        "#/additionalProperties",
    ),
    "any property": ({"type": "object", "additionalProperties": SELF, "minProperties": 1}, "#/additionalProperties"),
    "each of several": (
        {"anyOf": [required(a=SELF), {"type": "array", "items": SELF, "minItems": 1}]},
        "#/anyOf/0/properties/a",
    ),
    "all of several": ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": required(a=SELF)}}, "#/allOf/0"),
    "where it may be left out": (
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/A"}},
            "$defs": {"A": required(a={"$ref": "#/$defs/A"})},
        },
        "#/$defs/A/properties/a",
    ),
    "one of several": (
        {"anyOf": [NULL, {"$ref": "#/$defs/A"}], "$defs": {"A": required(a={"$ref": "#/$defs/A"})}},
        "#/$defs/A/properties/a",
    ),
    "by a URI": (required(a={"$ref": "T"}) | {"$id": "T"}, "#/properties/a"),
    "by an anchor": (required(a={"$ref": "#t"}) | {"$anchor": "t"}, "#/properties/a"),
    "in a part elsewhere": (
        {"$ref": "#/parts/A B", "parts": {"A B": required(a={"$ref": "#/parts/A B"})}},
        "#/parts/A B/properties/a",
    ),
    "of one type": (required(a=SELF | {"type": "object"}) | {"type": ["object", "null"]}, "#/properties/a"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_recursion_without_an_end_is_refused_with_its_place(name: str) -> None:
    schema, place = ENDLESS[name]
    with pytest.raises(GrammarError, match="recursion without an end") as refused:
        json_rule(schema)
    assert f"'$ref' at '{place}'" in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": SELF}, "additionalProperties": False}, '{"a": {"a": {}}}'),
        ({"type": "array", "items": SELF}, "[[], [[]]]"),
        ({"type": "array", "prefixItems": [SELF]}, "[[[]]]"),
        ({"anyOf": [NULL, required(a=SELF)]}, '{"a": {"a": null}}'),
        ({"oneOf": [NULL, required(a=SELF)]}, '{"a": {"a": null}}'),
        (required(a=SELF) | {"type": ["object", "null"]}, '{"a": {"a": null}}'),
        (required(a=SELF | {"description": "again", "title": "A"}) | {"type": ["object", "null"]}, '{"a": null}'),
        ({"type": "object", "additionalProperties": SELF}, '{"x": {"y": {}}}'),
        ({"enum": [1, {"a": 2}], "$defs": {"A": SELF}}, '{"a": 2}'),
        (
            required(value={"type": "integer"}, next={"anyOf": [SELF, NULL]}),
            '{"value": 1, "next": {"value": 2, "next": null}}',
        ),
    ],
)
def test_recursion_that_can_end_is_served(grammar: Grammar, schema: dict[str, Any], text: str) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert grammar.allows(json_rule(schema), text)


NAMES = ("A", "B", "C")
references = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda fields, some: required(**fields) | {"required": sorted(fields)[:some]},
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        st.integers(0, 2),
    )
    arrays = st.builds(
        lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": 2},
        inner,
        st.integers(0, 2),
    )
    return objects | arrays | st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})


recursive = st.recursive(references | references | st.just(NULL), _nested, max_leaves=3)


def _least(schema: Any, defs: dict[str, Any], depth: int = 10) -> Any:
    """A small value that is valid by a schema. Raises RecursionError if there is none within the depth."""
    if depth == 0:
        raise RecursionError
    if "$ref" in schema:
        return _least(defs[schema["$ref"][-1]], defs, depth - 1)
    for option in schema.get("anyOf", ()):
        try:
            return _least(option, defs, depth - 1)
        except RecursionError:
            continue
    if "anyOf" in schema:
        raise RecursionError
    if schema["type"] == "object":
        named = schema["properties"].items()
        return {name: _least(part, defs, depth - 1) for name, part in named if name in schema["required"]}
    if schema["type"] == "array":
        return [_least(schema["items"], defs, depth - 1) for _ in range(schema["minItems"])]
    return None


def _used(schema: Any, defs: dict[str, Any], seen: set[str]) -> list[Any]:
    """A schema and all those in it, also by references."""
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    if "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        inner.append(defs[schema["$ref"][-1]])
    return [schema, *(each for part in inner for each in _used(part, defs, seen))]


@settings(max_examples=60, deadline=None)
@given(defs=st.fixed_dictionaries(dict.fromkeys(NAMES, recursive)))
def test_a_schema_is_refused_if_a_part_of_it_has_no_finite_value(grammar: Grammar, defs: dict[str, Any]) -> None:
    defs = json.loads(json.dumps(defs))
    root = {"$ref": "#/$defs/A", "$defs": defs}
    endless = False
    for part in _used(root, defs, set()):
        try:
            _least(part, defs)
        except RecursionError:
            endless = True
    if endless:
        with pytest.raises(GrammarError, match="recursion without an end"):
            json_rule(root)
        return
    value = _least(root, defs)
    assert grammar.allows(json_rule(root), json.dumps(value))


REFS = [
    "#",
    "#/",
    "#/a",
    "#/$defs/a/0",
    "#/items/" + "9" * 5000,
    "#x",
    "T",
    "http://[",
    "//",
    "%",
    "#/%ff",
    "#/~",
    "?",
    "",
]
KEYWORDS = ["$ref", "$id", "id", "$anchor", "$schema", "type", "enum", "properties", "patternProperties", "required"]
KEYWORDS += ["additionalProperties", "minProperties", "items", "prefixItems", "additionalItems", "minItems", "anyOf"]
KEYWORDS += ["allOf", "$defs", "format", "a"]
soup = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from([*REFS, "object", "array"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), soup, max_size=5))
def test_what_is_no_schema_is_an_error_of_the_grammar(schema: dict[str, Any]) -> None:
    for make in (json_rule, closed):
        try:
            make(schema)
        except GrammarError:
            continue


# --- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["postcode", "int32", "uri-reference", "regex", "phone", "", "Date"])
def test_a_format_that_is_not_enforced_is_an_annotation(grammar: Grammar, format: str) -> None:
    parts = {"x": {"format": format}, "y": {"$ref": "#/parts/A"}, "z": {"type": "integer", "format": format}}
    schema = required(**parts) | {"parts": {"A": {"type": "string", "format": format, "maxLength": 3}}}
    assert grammar.allows(json_rule(schema), '{"x": "a", "y": "b", "z": 1}')
    assert not grammar.allows(json_rule(schema), '{"x": "a", "y": "long", "z": 1}')


def test_formats_are_enforced_and_are_no_keyword_in_values(grammar: Grammar) -> None:
    assert grammar.allows(json_rule({"type": "string", "format": "date"}), '"2024-02-29"')
    assert not grammar.allows(json_rule({"type": "string", "format": "date"}), '"today"')
    value = {"format": "postcode", "$ref": "#/a b"}
    assert grammar.allows(json_rule({"const": value}), json.dumps(value))
    named = required(format={"const": "postcode"})
    assert grammar.allows(json_rule(named), '{"format": "postcode"}')
