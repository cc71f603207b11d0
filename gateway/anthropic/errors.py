"""Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Scope

from gateway.errors import ApiError

PATH = "/v1/messages"
VERSION_HEADER = b"anthropic-version"  # every official client sends it, on all routes
OVERLOADED = 529  # Anthropic's own status for a server that cannot take a request now; its clients try again
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the client of this HTTP request reads Anthropic's errors."""
    path: str = scope["path"]
    return path == PATH or path.startswith(PATH + "/") or any(name == VERSION_HEADER for name, _ in scope["headers"])


def error_response(error: ApiError, scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """The error as the client of this HTTP request reads it: in Anthropic's shape or in OpenAI's."""
    response = error.response(headers)
    if speaks_anthropic(scope):
        status = OVERLOADED if response.status_code == 503 else response.status_code
        body = orjson.dumps(error_body(error, scope.get("state", {}).get("request_id")))
        del response.headers["content-length"]  # of the other body
        return Response(body, status, dict(response.headers))
    return response


def error_body(error: ApiError, request_id: str | None) -> dict[str, Any]:
    """The error object; in mid-stream it is the data of an `error` event."""
    told = {"type": _TYPES.get(error.kind.status, "invalid_request_error"), "message": error.message}
    return {"type": "error", "error": told, "request_id": request_id}
