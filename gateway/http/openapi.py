"""`/openapi.json`: the OpenAPI 3.1 document of what is served, made from the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.doors import PROBES
from gateway.errors import Kind
from gateway.http.auth import OPEN_PATHS
from gateway.http.documented import COMPONENTS, DOCUMENTED, JSON
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
    """Say whether the operation may ask for a key, and whether it looks at who calls it how."""
    if path not in PROBES:
        kinds = f"{Kind.UNKNOWN_HOST.value[2]}, {Kind.UNKNOWN_ORIGIN.value[2]}"
        _add(operation, 403, f"{kinds}: a name or a web page that the server does not know")
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    _add(operation, 401, f"{Kind.INVALID_KEY.value[2]}; only where the server has API keys")


def _add(operation: dict[str, Any], status: int, description: str) -> None:
    """An error that is made around the route; in the shape that the route gives it, if it names one."""
    content = {"content": {JSON: {"schema": {"$ref": COMPONENTS + "ErrorResponse"}}}}
    named = operation["responses"].get(str(status), {})
    operation["responses"][str(status)] = {**content, **named, "description": description}


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
