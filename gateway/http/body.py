"""The HTTP body: read within a limit, parsed as strict JSON, and validated as a schema object."""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from gateway.errors import ApiError, ClientGone, Kind
from gateway.executor import FairExecutor
from gateway.http.headers import check_encoding, content_length
from gateway.http.middleware import is_json
from gateway.schemas.json_size import MOST_VALUES, too_many
from gateway.schemas.strict import LONG_LISTS, MAX_DEPTH, too_deep, too_long

M = TypeVar("M", bound=BaseModel)
Path = tuple[str | int, ...]

MAX_WARNINGS = 1000  # unknown names that are logged, each once, so that clients cannot fill the log

log = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What this server takes: bodies of at most `max_bytes` bytes with at most `max_values` JSON values. Unknown fields
    are errors unless `ignore_unknown` is set. `executor` reads the bodies."""

    executor: FairExecutor
    max_bytes: int
    max_values: int
    ignore_unknown: bool


async def parse(request: Request, schema: type[M], limits: BodyLimits) -> M:
    """The body of `request` as a `schema` object.

    Raises ApiError for a compressed body, a content type other than JSON's, a body over `limits.max_bytes` (with or
    without a content length), too many values, anything but a JSON object (also for NaN and invalid UTF-8), nesting
    over `MAX_DEPTH` levels, and the first wrong field.
    """
    check_encoding(request.headers)
    _check_json(request.headers)
    body = await _read(request, limits.max_bytes, limits.executor)
    request.state.size = len(body)

    def parsed() -> M:
        return validate(schema, loads(body, limits.max_values), limits.ignore_unknown)

    return await limits.executor.run(request.state.tenant, len(body), parsed)


def _check_json(headers: Headers) -> None:
    """Raises ApiError for a Content-Type other than JSON's. A body without one is accepted, except from web pages."""
    given = headers.get("content-type", "")
    if given and not is_json(given):
        text = f"The body's Content-Type is '{given[:100]}'; send it as application/json"
        raise ApiError(Kind.NOT_JSON, f"{text} (curl: -H 'Content-Type: application/json').")


async def _read(request: Request, max_bytes: int, executor: FairExecutor) -> bytes:
    if content_length(request) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    try:
        async for part in request.stream():
            if size + len(part) > max_bytes:
                raise _too_large(max_bytes)
            executor.reserve(request.state.tenant, len(part))
            size += len(part)
            parts.append(part)
    except ClientDisconnect:
        raise ClientGone from None
    finally:
        executor.release(request.state.tenant, size)
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(Kind.BODY_TOO_LARGE, f"The body is longer than the {max_bytes} bytes this server takes.")


def loads(body: bytes, values: int = MOST_VALUES) -> dict[str, Any]:
    """The JSON object in `body`, with at most `values` values. A byte order mark before it, as Windows programs write
    it, is left out. Raises ApiError."""
    if (reason := too_many(body, values)) is not None:
        raise ApiError(Kind.BODY_TOO_LARGE, f"The body has {reason}.")
    try:
        value = orjson.loads(body.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise ApiError(Kind.INVALID, f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(Kind.INVALID, "The body must be a JSON object.")
    return value


def validate(model: type[M], value: dict[str, Any], ignore_unknown: bool = False) -> M:
    """`value` as a `model`. Raises ApiError about the first wrong field. `ignore_unknown`: unknown fields are removed
    from `value` and logged instead."""
    if too_deep(value):
        raise ApiError(Kind.INVALID, f"The body is nested more than {MAX_DEPTH} levels deep.")
    if (reason := too_long(value, getattr(model, "long_lists", LONG_LISTS))) is not None:
        raise ApiError(Kind.INVALID, reason)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    unknown = [e["loc"] for e in errors if e["type"] == "extra_forbidden"]
    if not (ignore_unknown and unknown):
        raise _explain(errors, value)
    for path in unknown:
        _remove(value, path)
    _warn(unknown)
    return validate(model, value)


def _remove(value: Any, path: Path) -> None:
    """Remove the field at `path`. Steps of the path that name a variant of a union do not exist in the value."""
    *steps, name = path
    for step in steps:
        known = isinstance(value, list) if isinstance(step, int) else step in value
        value = value[step] if known else value
    value.pop(name, None)


def _warn(unknown: list[Path]) -> None:
    for name in {str(path[-1])[:64] for path in unknown} - _warned:
        if len(_warned) < MAX_WARNINGS:
            _warned.add(name)
            log.warning("ignored the unknown parameter %r (unknown_fields=ignore); logged once for each name", name)


def _explain(errors: list[Any], body: dict[str, Any]) -> ApiError:
    known = [e for e in errors if e["type"] != "extra_forbidden"]
    mistyped = {e["loc"][:-1] for e in known if e["loc"] and e["loc"][-1] == "type"}  # its fields are unknown for that
    unknown = [
        _path(_existing(e["loc"], body, e["type"]))
        for e in errors
        if e["type"] == "extra_forbidden" and e["loc"][:-1] not in mistyped
    ]
    if unknown:
        return ApiError(Kind.UNSUPPORTED, f"Unknown parameter: {', '.join(unknown[:20])}.", unknown[0])
    error = known[0]
    loc = _existing(error["loc"], body, error["type"])
    param = _path(loc)
    if error["type"] == "contradiction":
        return ApiError(Kind.INVALID, f"{error['msg']}.", _path((*loc, error["ctx"]["param"])))
    if error["type"] == "missing":
        return ApiError(Kind.INVALID, f"Missing required parameter: '{param}'.", param)
    kind = Kind.UNSUPPORTED if error["type"] == "unsupported" else Kind.INVALID
    text = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    value = error["input"]
    got = f" (got {value!r})" if isinstance(value, int | float) or (isinstance(value, str) and len(value) < 50) else ""
    return ApiError(kind, f"Invalid '{param}': {text}{got}.", param)


def _existing(loc: Path, value: Any, kind: str) -> Path:
    """`loc` without its steps that name a variant of a union, which the client has not written. `kind`: of the error;
    the field of a missing one does not exist."""
    steps: list[str | int] = []
    for place, step in enumerate(loc):
        rest = loc[place + 1 :]
        if _exists(value, step, rest, kind):
            value = value[step]
        elif rest or kind != "missing":
            continue
        steps.append(step)
    return tuple(steps)


def _exists(value: Any, step: str | int, rest: Path, kind: str) -> bool:
    """Whether `step` leads into `value`, and is not the variant of that name, whose field is no container."""
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    if not isinstance(value, dict) or step not in value:
        return False
    if not rest or isinstance(value[step], dict | list):
        return True
    return rest[0] not in value and kind not in ("missing", "contradiction", "extra_forbidden")


def _path(loc: Path) -> str:
    """The name of a field in OpenAI's notation: `messages[0].content`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:64]}" if path else part[:64]
    return path
