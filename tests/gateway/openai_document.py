"""OpenAI's OpenAPI document, see tests/schemas.py. Tests that need it are skipped without it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema
import yaml

from tests import schemas

PREFIX = "#/components/schemas/"


@cache
def whole() -> dict[str, Any]:
    """The document as it is. Skips if it is missing."""
    document: dict[str, Any] = yaml.load(schemas.document("openai_openapi.yaml").read_text(), yaml.CSafeLoader)
    return document


@cache
def _document() -> dict[str, Any]:
    document = whole()
    by_name = schemas.rewritten(document["components"]["schemas"], _as_json_schema)
    # in its own examples, as in OpenAI's answers, it is null before the end
    (of_response,) = (part for part in by_name["Response"]["allOf"] if "usage" in part.get("properties", ()))
    of_response["properties"]["usage"] = {"anyOf": [{"type": "null"}, of_response["properties"]["usage"]]}
    by_path = {_unnamed(path): operations for path, operations in document["paths"].items()}
    return {"schemas": by_name, "paths": by_path}


def _schemas() -> dict[str, Any]:
    by_name: dict[str, Any] = _document()["schemas"]
    return by_name


def components() -> dict[str, Any]:
    return {"schemas": _schemas()}


def operation(method: str, path: str) -> dict[str, Any] | None:
    """OpenAI's operation at `path`, ignoring the names of its parameters; None if there is none."""
    found: dict[str, Any] | None = _document()["paths"].get(_unnamed(path.removeprefix("/v1")), {}).get(method)
    return found


def _unnamed(path: str) -> str:
    return re.sub("{.*?}", "{}", path)


def check(name: str, value: Any) -> None:
    """Asserts that `value` is a `name` of the document. Skips if the document is missing."""
    check_schema({"$ref": PREFIX + name}, value)


def check_schema(schema: dict[str, Any], value: Any) -> None:
    """Asserts that `value` matches `schema`, a part of the document."""
    jsonschema.Draft202012Validator({**schema, "components": components()}).validate(value)


def schema(name: str) -> dict[str, Any]:
    """The schema `name`. Skips if the document is missing."""
    found: dict[str, Any] = _schemas()[name]
    return found


def fields(name: str) -> set[str]:
    """All fields of the object `name`."""
    schema = _schemas()[name]
    inherited = [fields(part["$ref"].removeprefix(PREFIX)) for part in schema.get("allOf", ()) if "$ref" in part]
    own = [set(part.get("properties", ())) for part in (schema, *schema.get("allOf", ()))]
    return set().union(*inherited, *own)


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0's `nullable` as JSON Schema."""
    return {"anyOf": [{"type": "null"}, schema]} if schema.pop("nullable", False) is True else schema
