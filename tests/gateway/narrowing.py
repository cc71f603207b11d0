"""Compares the fields that two schemas share: which values the second schema does not accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Components = dict[str, Any]
BOUNDS = {"minimum": min, "minLength": min, "minItems": min, "maximum": max, "maxLength": max, "maxItems": max}


def narrowed(theirs: Any, their_components: Components, ours: Any, our_components: Components) -> set[str]:
    """`field: what is not accepted` for each shared field: a kind of value, a word of an enumeration or a bound."""
    their_fields, our_fields = _fields(theirs, their_components), _fields(ours, our_components)
    return {
        f"{name}: {less}"
        for name in their_fields.keys() & our_fields.keys()
        for less in _less(
            list(_flat(their_fields[name], their_components)), list(_flat(our_fields[name], our_components))
        )
    }


def _less(theirs: list[Any], ours: list[Any]) -> Iterator[str]:
    if any(not _kinds(schema) for schema in ours):
        return  # any value is accepted
    for schema in theirs:
        for kind in _kinds(schema):
            same = [o for o in ours if kind in _kinds(o) or (kind == "integer" and "number" in _kinds(o))]
            if not same:
                yield kind
                continue
            yield from _less_words(schema, same)
            yield from _less_room(schema, same)


def _less_words(schema: Any, same: list[Any]) -> Iterator[str]:
    """Words of an enumeration."""
    words = _words(schema)
    if all(_words(o) is not None for o in same):
        taken = [word for o in same for word in _words(o) or ()]
        if words is None and _kinds(schema) != ["null"]:
            yield f"any {_kinds(schema)[0]} but {', '.join(map(str, taken))}"
        for word in words or ():
            if word not in taken:
                yield f"'{word}'"


def _less_room(schema: Any, same: list[Any]) -> Iterator[str]:
    for bound, wider in BOUNDS.items():
        if all(bound in o for o in same):
            limit = wider(o[bound] for o in same)
            if bound not in schema or wider(limit, schema[bound]) != limit:
                yield f"{bound} {limit}"


def _kinds(schema: Any) -> list[str]:
    found = schema.get("type")
    if isinstance(found, str):
        return [found]
    if found:
        return list(found)
    words = _words(schema)
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return [] if words is None else list({names.get(type(word), "null"): None for word in words})


def _words(schema: Any) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _flat(schema: Any, components: Components) -> Iterator[Any]:
    """The alternatives of a schema, each of one kind."""
    schema = _resolved(schema, components)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            for part in schema[key]:
                yield from _flat(part, components)
            return
    parts = schema.get("allOf")
    if parts:
        for part in parts:
            yield from _flat(part, components)
        return
    words = _words(schema)
    if words is not None and "type" not in schema:
        for word in words:
            yield {"const": word}
        return
    kinds = _kinds(schema)
    yield from ({**schema, "type": kind} for kind in kinds) if len(kinds) > 1 else [schema]


def _fields(schema: Any, components: Components) -> dict[str, Any]:
    schema = _resolved(schema, components)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        found |= _fields(part, components)
    return found


def _resolved(schema: Any, components: Components) -> Any:
    while "$ref" in schema:
        schema = components["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
