"""Which JSON types the parameters of tools may have, for formats whose texts do not say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.answer.parsers.xml_call import TYPES
from gateway.tools import Tool

FAR = 16  # references from one to the next, and schemas within each other
NAMES = (*TYPES.values(), "string")


def types_of(tools: Sequence[Tool]) -> dict[str, dict[str, str]]:
    """For each tool, the types of the parameters that are not only strings: names of JSON Schema, separated by commas.
    A parameter whose schema has no types is a string, as in vLLM."""
    made: dict[str, dict[str, str]] = {}
    for tool in tools:
        for name, schema in parameters_of(tool.schema).items():
            types = list(dict.fromkeys(_types(schema, tool.schema, FAR)))
            if any(kind != "string" for kind in types):
                made.setdefault(tool.name, {})[name] = ",".join(types)
    return made


def parameters_of(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of the arguments by name."""
    schema: Any = root
    for _ in range(FAR):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = referred(root, schema["$ref"])
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def referred(root: Any, reference: Any) -> Any:
    """What a reference within a schema refers to; None if it is another one."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    value = root
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _types(schema: Any, root: Any, far: int) -> Iterable[str]:
    if not isinstance(schema, Mapping) or far == 0:
        return
    kind = schema.get("type")
    if kind is not None:
        yield from (name for name in (kind if isinstance(kind, list) else [kind]) if name in NAMES)
        return
    values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    yield from (TYPES.get(type(value), "string") for value in values)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for each in _listed(schema, keyword):
            yield from _types(each, root, far - 1)
    if "$ref" in schema:
        yield from _types(referred(root, schema["$ref"]), root, far - 1)
    if "properties" in schema:
        yield "object"
    elif "items" in schema:
        yield "array"


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
