"""OpenAI's own document, where this machine has it: the folder in ORCA_SCHEMAS."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

PREFIX = "#/components/schemas/"


@cache
def _schemas() -> dict[str, Any]:
    folder = os.environ.get("ORCA_SCHEMAS")
    if not folder:
        pytest.skip("ORCA_SCHEMAS does not name a folder with openai_openapi.yaml")
    document = yaml.load((Path(folder) / "openai_openapi.yaml").read_text(), yaml.CSafeLoader)
    return {name: _as_json_schema(schema) for name, schema in document["components"]["schemas"].items()}


def check(name: str, value: Any) -> None:
    """`value` is what the document calls `name`. Skips where there is no document."""
    root = {"$ref": PREFIX + name, "components": {"schemas": _schemas()}}
    jsonschema.Draft202012Validator(root).validate(value)


def schema(name: str) -> dict[str, Any]:
    """The schema `name`. Skips where there is no document."""
    found: dict[str, Any] = _schemas()[name]
    return found


def fields(name: str) -> set[str]:
    """All fields of the object `name`."""
    schema = _schemas()[name]
    inherited = [fields(part["$ref"].removeprefix(PREFIX)) for part in schema.get("allOf", ()) if "$ref" in part]
    own = [set(part.get("properties", ())) for part in (schema, *schema.get("allOf", ()))]
    return set().union(*inherited, *own)


def _as_json_schema(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable` in JSON Schema's words."""
    if isinstance(schema, list):
        return [_as_json_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _as_json_schema(part) for key, part in schema.items()}
    if made.pop("nullable", False) is True:
        return {"anyOf": [{"type": "null"}, made]}
    return made
