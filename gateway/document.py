"""`/openapi.json`: the OpenAPI 3.1 document of what is served, made from the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.documented import COMPONENTS, DOCUMENTED, JSON
from gateway.errors import Kind
from gateway.keys import OPEN_PATHS
from services.version import program_version

DESCRIPTION = """OpenAI's API for one model, some of vLLM's routes, and streams that can be resumed.

Unknown and unsupported fields are refused with a 400 that names them. With API keys on, every route but those without a
lock asks for `Authorization: Bearer KEY`. A client's `x-request-id` comes back with every answer."""
KEY = "key"
FRAMEWORKS = "422"  # FastAPI's error for parameters that it validates, which no route here has


def document(app: FastAPI) -> dict[str, Any]:
    """Made at the first call, then kept: routes do not change. Asserts that no two types have one name."""
    if app.openapi_schema is None:
        made = _raw(app)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for path, operations in made["paths"].items():
            for operation in operations.values():
                operation.pop(DOCUMENTED, None)
                operation["responses"].pop(FRAMEWORKS, None)
                _lock(path, operation)
        _collect(made["paths"], schemas)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        made["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {KEY: []}]
        app.openapi_schema = made
    return app.openapi_schema


def undocumented(app: FastAPI) -> list[str]:
    """Method and path of each operation whose route has no `documented(...)`."""
    return [
        f"{method.upper()} {path}"
        for path, operations in _raw(app)["paths"].items()
        for method, operation in operations.items()
        if DOCUMENTED not in operation
    ]


def _raw(app: FastAPI) -> dict[str, Any]:
    return get_openapi(title=app.title, version=program_version(), description=DESCRIPTION, routes=app.routes)


def _lock(path: str, operation: dict[str, Any]) -> None:
    """Say whether the operation may ask for a key."""
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    error = {"description": f"{Kind.INVALID_KEY.value[2]}; only where the server has API keys"}
    content = {"content": {JSON: {"schema": {"$ref": COMPONENTS + "ErrorResponse"}}}}
    operation["responses"]["401"] = {**content, **operation["responses"].get("401", {}), **error}


def _collect(part: Any, schemas: dict[str, Any]) -> None:
    """Move each `$defs` inside `part` to the document's schemas, where references look for them."""
    if isinstance(part, list):
        for item in part:
            _collect(item, schemas)
    if not isinstance(part, dict):
        return
    for name, schema in part.pop("$defs", {}).items():
        _collect(schema, schemas)
        assert schemas.setdefault(name, schema) == schema, f"two types are called {name}"
    for item in part.values():
        _collect(item, schemas)
