"""The description of a route for `/openapi.json`: `@router.post("/path", **documented(takes=..., gives=...))`.

Routes read bodies, queries and headers themselves, so FastAPI does not know them. The description of an operation is
the docstring of its function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gateway.errors import ErrorResponse, Kind
from gateway.http.headers import MAX_TIMEOUT, MIN_TIMEOUT

COMPONENTS = "#/components/schemas/"
DOCUMENTED = "x-documented"  # marks the operation until the document is made
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
    content: dict[str, Any] = {}
    if gives is not None:
        content[JSON] = {"schema": _schema(gives, "serialization")}
    if streams is not None:
        content[EVENTS] = {"schema": _schema(streams, "serialization")}
    if text:
        content[TEXT] = {"schema": {"type": "string"}}
    if binary:
        content[BYTES] = {"schema": {"type": "string", "format": "binary"}}
    extra: dict[str, Any] = {"responses": {"200": {"content": content}}, "parameters": list(parameters)}
    if streams is not None:
        name = {"description": "the id of the request, for `/v1/streams`", "schema": {"type": "string"}}
        extra["responses"]["200"]["headers"] = {"Orca-Request": name}
    extra["responses"] |= {str(status): {"description": meaning} for status, meaning in empty.items()}
    extra["responses"] |= _errors(errors, error, statuses)
    if takes is not None:
        body = {"content": {takes_type: {"schema": _schema(takes, "validation")}}, "required": True}
        extra["requestBody"] = body
    return {
        "response_model": None,
        "response_class": JSONResponse if gives is not None else PlainTextResponse if text else Response,
        "openapi_extra": {DOCUMENTED: True, **extra},
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
