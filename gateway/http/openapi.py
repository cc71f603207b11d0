"""`/openapi.json`, the OpenAPI 3.1 document made from the routes, and `/docs`, Swagger UI for it.

Routes read bodies, queries and headers themselves, so FastAPI does not know them. Each describes itself:
`@router.post("/path", **documented(takes=..., gives=...))`; the docstring of its function is that of the operation. The
files of Swagger UI come from an installed package, not from other servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import groupby
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gateway.errors import ApiError, ErrorResponse, Kind
from gateway.http.headers import MAX_TIMEOUT, MIN_TIMEOUT
from gateway.http.middleware import OPEN_PATHS, PROBES
from services.version import program_version

COMPONENTS = "#/components/schemas/"
DOCUMENTED = "x-documented"  # marks the operation until the document is made
# What fills in the operations. To make the schemas of all types takes as long as half of a gateway's imports, and most
# gateways are never asked for the document.
_descriptions: list[Callable[[], None]] = []
JSON, EVENTS, TEXT, BYTES = "application/json", "text/event-stream", "text/plain", "application/octet-stream"

# errors of routes that use the pool, that read a body, and that submit a request
POOL_ERRORS = (Kind.POOL_UNAVAILABLE, Kind.STOPPING, Kind.INTERNAL)
BODY_ERRORS = (
    Kind.INVALID,
    Kind.UNSUPPORTED,
    Kind.MODEL_NOT_FOUND,
    Kind.BODY_TOO_LARGE,
    Kind.NOT_JSON,
    Kind.COMPRESSED,
    Kind.TOO_MANY_LONG,
    Kind.INTERNAL,
)
ENDS_WITHOUT_ANSWER = (Kind.FAILED, Kind.CANCELLED, Kind.QUEUE_TIMEOUT, Kind.DIVERGED)
GENERATION_ERRORS = (
    *BODY_ERRORS,
    *POOL_ERRORS,
    Kind.CONTEXT_LENGTH,
    Kind.KEY_REUSED,
    Kind.REQUEST_NOT_FOUND,
    Kind.POOL_FULL,
    Kind.TOO_MANY_FOLLOWERS,
    Kind.SLOW_READER,
    Kind.NO_ENGINE,
    *ENDS_WITHOUT_ANSWER,
)


def header(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """A header of the request."""
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    """A query parameter of the request."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


IDEMPOTENCY_KEY = header(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255},
    "The same request with the same key gets the same tokens. The request is resumable.",
)
RESUMABLE = header(
    "Orca-Resumable",
    {"type": "string", "enum": ["true", "false"]},
    "true: the request continues for a while without a client, and the events of its stream have ids.",
)
LAST_EVENT_ID = header(
    "Last-Event-ID",
    {"type": "string"},
    "The id of the last event that the client has received; the stream continues after it.",
)
QUEUE_TIMEOUT = header(
    "X-Queue-Timeout",
    {"type": "number", "minimum": MIN_TIMEOUT, "maximum": MAX_TIMEOUT},
    "Seconds within which an engine must begin the request; otherwise it ends with a 408.",
)
GENERATION_HEADERS = (IDEMPOTENCY_KEY, RESUMABLE, LAST_EVENT_ID, QUEUE_TIMEOUT)


def documented(
    *,
    takes: Any = None,
    gives: Any = None,
    streams: Any = None,
    text: bool = False,
    binary: bool = False,
    parameters: Sequence[dict[str, Any]] = (),
    errors: Sequence[Kind] = (),
    error: Any = ErrorResponse,
    statuses: Mapping[int, int] = MappingProxyType({}),
    empty: Mapping[int, str] = MappingProxyType({}),
    takes_type: str = JSON,
) -> dict[str, Any]:
    """The keyword arguments of a FastAPI route that describe it; they do not change its behaviour.

    `takes`: the type of the request's body; `gives`: that of the answer's; `streams`: that of each event's data if the
    answer can be a stream. `text`: the answer is plain text; `binary`: it is bytes. Without any of these the answer's
    body is empty. `errors`: answered with an object of the type `error`, with a different status if `statuses` has one.
    `empty`: statuses that are answered without a body. `takes_type`: the content type of the request's body.
    """

    def described() -> dict[str, Any]:
        content: dict[str, Any] = {}
        if gives is not None:
            content[JSON] = {"schema": _schema(gives, "serialization")}
        if streams is not None:
            content[EVENTS] = {"schema": _schema(streams, "serialization")}
        if text:
            content[TEXT] = {"schema": {"type": "string"}}
        if binary:
            content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
        made: dict[str, Any] = {"responses": {"200": {"content": content}}, "parameters": list(parameters)}
        if streams is not None:
            name = {"description": "the id of the request, for `/v1/streams`", "schema": {"type": "string"}}
            made["responses"]["200"]["headers"] = {"Orca-Request": name}
        made["responses"] |= {str(status): {"description": meaning} for status, meaning in empty.items()}
        made["responses"] |= _errors(errors, error, statuses)
        if takes is not None:
            schema = _schema(takes, "validation")
            made["requestBody"] = {"content": {takes_type: {"schema": schema}}, "required": True}
        return made

    extra: dict[str, Any] = {DOCUMENTED: True}
    _descriptions.append(lambda: extra.update(described()))
    return {
        "response_model": None,
        "response_class": JSONResponse if gives is not None else PlainTextResponse if text else Response,
        "openapi_extra": extra,
    }


def _schema(type_: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    """The JSON schema of `type_`; `openapi` takes the types that it refers to from `$defs`."""
    made: dict[str, Any] = TypeAdapter(type_).json_schema(ref_template=COMPONENTS + "{model}", mode=mode)
    definitions = made.pop("$defs", {})
    name = made.get("title", "") if "properties" in made else ""
    if not name:
        return {**made, "$defs": definitions}
    return {"$ref": COMPONENTS + name, "$defs": {**definitions, name: made}}


def _errors(kinds: Sequence[Kind], type_: Any, statuses: Mapping[int, int]) -> dict[str, Any]:
    """The errors by status, each with all its codes."""
    made: dict[str, Any] = {}
    for status, same in groupby(sorted(set(kinds), key=lambda kind: kind.status), key=lambda kind: kind.status):
        found = list(same)
        codes = sorted(str(kind.value[2] or kind.value[1]) for kind in found)
        schema = {"schema": _schema(type_, "serialization")}
        answered = str(statuses.get(status, status))
        made[answered] = {"description": ", ".join(codes), "content": {JSON: schema}}
        if any(kind.value[3] is not None for kind in found):
            when = {"description": "seconds after which to try again", "schema": {"type": "integer"}}
            made[answered]["headers"] = {"Retry-After": when}
    return made


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
    for describe in _descriptions:
        describe()
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
