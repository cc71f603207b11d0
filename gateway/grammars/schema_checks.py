"""Schemas that llguidance compiles, but to a grammar that allows documents that are not valid by them, that it cannot
follow, or that takes work which its limits do not count; and recursion without an end: schemas by which each value has
to contain another value, without a last one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import lcm
from typing import Any

from gateway.grammars.schema_document import Schema, SchemaDocument
from services.errors import GrammarError

TYPES = ("null", "boolean", "number", "string", "array", "object")
ANY = "any"
FAR = 8  # references from one to the next
# A schema by its `id()`, and the type of a value that is valid by it. It has an end if a finite value is.
Case = tuple[int, str]
Need = list[Case]  # cases of which one must have an end
Node = Case | tuple[Case, int]  # a case, or one of its needs
# properties of one object that are not required; llguidance's parser has four items in a row for each, see MOST_ITEMS
MOST_OPTIONAL = 490
OLDEST = ("draft-00", "draft-01", "draft-02", "draft-03")
# common multiple of all `multipleOf`; llguidance has a state for each remainder, which take about 50 ms and 10 MB
MOST_COMMON = 10_000
_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")
_MULTIPLE = re.compile(r'multipleOf"\s*:\s*([-+.0-9eE]{1,64})')


def check_schema(document: SchemaDocument) -> None:
    """Raises GrammarError for a dialect before draft 4, for a `minProperties` over 1 that one property could fulfil by
    being there twice, for an object with more optional properties than an engine can follow, and for a recursion
    without an end."""
    for _, schema in document.places.values():
        dialect = str(schema.get("$schema", ""))
        if any(draft in dialect for draft in OLDEST):
            raise GrammarError(f"'$schema': {dialect[:100]!r} is not supported; draft 4 and later are")
        _check_counts(schema)
    check_ends(document)


def _check_counts(schema: Schema) -> None:
    least, required, properties = (schema.get(name) for name in ("minProperties", "required", "properties"))
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if type(least) is int and least > max(1, len(names)):
        raise GrammarError(f"'minProperties': {least} is supported only if as many properties are 'required'")
    if isinstance(properties, dict) and (optional := len(properties.keys() - names)) > MOST_OPTIONAL:
        text = f"'properties': {optional:,} of one object are not 'required'; at most {MOST_OPTIONAL} are supported"
        raise GrammarError(text)


def check_multiples(text: str) -> None:
    """Raises GrammarError if the common multiple of all `multipleOf` in `text` is too large. Schemas in `allOf` have to
    hold together, so that the remainders are those of the common multiple. Zeros at the end do not count."""
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    common = 1
    for number in set(_MULTIPLE.findall(plain)):
        common = lcm(common, _digits(number))
        if common > MOST_COMMON:
            raise GrammarError(f"'multipleOf': the common multiple of all its values has to be at most {MOST_COMMON:,}")


def _digits(number: str) -> int:
    """The digits of a number as an integer, without zeros at the end; 1 for what is not a number above zero, which
    llguidance refuses."""
    try:
        digits = int("".join(map(str, Decimal(number).as_tuple().digits)).rstrip("0") or 1)
    except InvalidOperation:
        return 1
    return digits


def check_ends(document: SchemaDocument) -> None:
    """Raises GrammarError for a schema by which infinite values alone are valid, with the place of a reference that
    leads back to it. A model that begins such a value cannot end it.

    Takes a time that is linear in the size of the schema.
    """
    if not document.targets:
        return
    schemas = [schema for _, schema in document.places.values()]
    needs = {
        (id(schema), type): _needs(document, schema, type)
        for schema in schemas
        for type in (ANY, *_types(document, schema))
    }
    numbered: dict[Node, list[Case]] = {(case, i): need for case, own in needs.items() for i, need in enumerate(own)}
    graph: dict[Node, Sequence[Node]] = {case: [(case, i) for i in range(len(own))] for case, own in needs.items()}
    graph |= numbered
    ended = _true(graph, needs.keys())
    unsatisfiable = _true(graph, numbered.keys())  # the compiler reports these
    for schema in schemas:
        case: Case = (id(schema), ANY)
        if case not in ended and case not in unsatisfiable:
            way: dict[Case, None] = {}
            while case not in way:
                way[case] = None
                need = next(need for need in needs[case] if ended.isdisjoint(need))
                case = next(other for other in need if other not in unsatisfiable)
            cases = list(way)
            raise _endless(document, [schema for schema, _ in cases[cases.index(case) :]])


def _endless(document: SchemaDocument, circle: list[int]) -> GrammarError:
    """The error for schemas of which each requires the next."""
    place = next(document.places[schema][0] for schema in circle if schema in document.targets)
    text = f"'$ref' at {place[:200]!r} is a recursion without an end: each value has to contain another one"
    return GrammarError(f"{text}; allow null there, or do not require it")


def _true(graph: Mapping[Node, Sequence[Node]], conjunctions: Container[Node]) -> set[Node]:
    """The nodes of a graph that are true: a conjunction if all of its successors are, another node if one is. What
    depends on itself alone is not true."""
    left = {node: len(others) if node in conjunctions else 1 for node, others in graph.items()}
    before: dict[Node, list[Node]] = defaultdict(list)
    for node, others in graph.items():
        for other in others:
            before[other].append(node)
    ready = [node for node, count in left.items() if not count]
    true = set(ready)
    while ready:
        for node in before[ready.pop()]:
            left[node] -= 1
            if left[node] <= 0 and node not in true:
                true.add(node)
                ready.append(node)
    return true


def _needs(document: SchemaDocument, schema: Schema, type: str) -> list[Need]:
    """What a value of a type needs to have an end. An empty need cannot be met."""
    if type == ANY:
        return [[(id(schema), each) for each in _types(document, schema)]]
    if "const" in schema or "enum" in schema:
        return []
    together = [document.targets.get(id(schema), True), *_list(schema.get("allOf"))]
    choices = [_list(schema.get(name)) for name in ("anyOf", "oneOf")]
    needs = [*([each] for each in together), *([each for each in choice if each is not False] for choice in choices)]
    inner = _items(schema) if type == "array" else _properties(schema) if type == "object" else []
    return [
        *([(id(each), type) for each in need if type in _types(document, each)] for need in needs if _open(need)),
        *([(id(each), ANY) for each in need] for need in inner if _open(need)),
    ]


def _open(need: list[Any]) -> bool:
    """Whether the schemas of a need say something. The compiler reports the boolean by which nothing is valid."""
    return bool(need) and all(isinstance(each, dict) for each in need)


def _types(document: SchemaDocument, schema: Schema) -> Sequence[str]:
    """The types that a schema allows, or what it refers to; all if that is far away."""
    for _ in range(FAR):
        target = document.targets.get(id(schema))
        if "type" in schema or not isinstance(target, dict):
            break
        schema = target
    allowed = schema.get("type", TYPES)
    names = ["number" if name == "integer" else name for name in (allowed if isinstance(allowed, list) else [allowed])]
    return TYPES if allowed is TYPES else [name for name in TYPES if name in names]


def _items(schema: Schema) -> list[list[Any]]:
    """The schemas of the items that an array must have. An array has, for each list, an item that is valid by one of
    its schemas."""
    least = _count(schema, "minItems")
    items = schema.get("items", True)
    first = items if isinstance(items, list) else _list(schema.get("prefixItems"))
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    return [[each] for each in [*first[:least], *([rest] if least > len(first) else [])]]


def _properties(schema: Schema) -> list[list[Any]]:
    """The schemas of the properties that an object must have. An object has, for each list, a property that is valid by
    one of its schemas."""
    named, patterns = (schema.get(name) for name in ("properties", "patternProperties"))
    named, patterns = (each if isinstance(each, dict) else {} for each in (named, patterns))
    others = [*patterns.values(), schema.get("additionalProperties", True)]
    required = dict.fromkeys(name for name in _list(schema.get("required")) if isinstance(name, str))
    needs = [[named[name]] for name in required if name in named]
    if len(needs) < len(required):
        needs.append(others)
    if _count(schema, "minProperties") and not required:
        needs.append([*named.values(), *others])
    return [[each for each in need if each is not False] for need in needs]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(schema: Schema, name: str) -> int:
    value = schema.get(name)
    return int(value) if isinstance(value, int | float) else 0
