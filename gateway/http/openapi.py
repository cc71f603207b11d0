"""`/openapi.json`, the OpenAPI 3.1 document made from the routes, and `/docs`, Swagger UI for it.

The files of Swagger UI come from an installed package, not from other servers.
"""

from __future__ import annotations

import asyncio
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import JSONResponse, Response

from gateway.errors import ApiError, Kind
from gateway.http.documented import COMPONENTS, DOCUMENTED, JSON
from gateway.http.middleware import OPEN_PATHS, PROBES
from services.version import program_version

DESCRIPTION = """OpenAI's API for one model, some of vLLM's routes, and streams that can be resumed.

Unknown and unsupported fields are refused with a 400 that names them. With API keys on, every route with a lock
requires `Authorization: Bearer KEY`. A client's `x-request-id` is returned with every answer."""
KEY = "key"
FRAMEWORK_ERROR = "422"  # FastAPI's error for parameters that it validates; no route here has any

SWAGGER_FILES = {
    "swagger-ui-bundle.js": "application/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
CACHE_ONE_DAY = {"Cache-Control": "public, max-age=86400"}

router = APIRouter(include_in_schema=False)


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made at the first call and cached. Asserts that no two types have the same name."""
    if app.openapi_schema is None:
        made = _raw(app)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for path, operations in made["paths"].items():
            for operation in operations.values():
                operation.pop(DOCUMENTED, None)
                operation["responses"].pop(FRAMEWORK_ERROR, None)
                _lock(path, operation)
        _collect(made["paths"], schemas)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        made["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
        made["security"] = [{}, {KEY: []}]
        app.openapi_schema = made
    return app.openapi_schema


def undocumented(app: FastAPI) -> list[str]:
    """The method and path of each operation whose route has no `documented(...)`."""
    return [
        f"{method.upper()} {path}"
        for path, operations in _raw(app)["paths"].items()
        for method, operation in operations.items()
        if DOCUMENTED not in operation
    ]


def _raw(app: FastAPI) -> dict[str, Any]:
    return get_openapi(title=app.title, version=program_version(), description=DESCRIPTION, routes=app.routes)


def _lock(path: str, operation: dict[str, Any]) -> None:
    """Add the errors of the operation that the middleware makes: the key, and the host and origin."""
    if path not in PROBES:
        kinds = f"{Kind.UNKNOWN_HOST.value[2]}, {Kind.UNKNOWN_ORIGIN.value[2]}"
        _add(operation, 403, f"{kinds}: a host name or web page that the server does not know")
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    _add(operation, 401, f"{Kind.INVALID_KEY.value[2]}; only where the server has API keys")


def _add(operation: dict[str, Any], status: int, description: str) -> None:
    """Add an error of the middleware, in the format that the route gives for this status, if any."""
    content = {"content": {JSON: {"schema": {"$ref": COMPONENTS + "ErrorResponse"}}}}
    named = operation["responses"].get(str(status), {})
    operation["responses"][str(status)] = {**content, **named, "description": description}


def _collect(part: Any, schemas: dict[str, Any]) -> None:
    """Move each `$defs` inside `part` to the document's schemas, where references point."""
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


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document."""
    made = await asyncio.to_thread(document, request.app)
    return JSONResponse(made)  # not orjson: a seed has a bound of more than 64 bits


@router.get("/docs")
async def page() -> Response:
    """Swagger UI. Addresses are relative, so that a proxy can serve it under a prefix."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Orca",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None},  # otherwise the page asks a server on the internet
    )


@router.get("/docs/{name}")
async def file(name: str) -> Response:
    if name not in SWAGGER_FILES:
        raise ApiError(Kind.NOT_FOUND, f"There is no file '{name[:100]}'.")
    content = await asyncio.to_thread((resources.files("fastapi_swagger") / "resources" / name).read_bytes)
    return Response(content, media_type=SWAGGER_FILES[name], headers=CACHE_ONE_DAY)
