"""The closed set of errors that a client can see, in OpenAI's and Anthropic's formats."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import orjson
from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import TypedDict

from services.requests import Refusal

MESSAGES_PATH = "/v1/messages"
VERSION_HEADER = b"anthropic-version"  # every official client sends it on all routes
POOL_AWAY = "The request pool does not answer; try again later."
OVERLOADED = 529  # Anthropic's status instead of 503; its clients retry
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}

_BOUNDS = {
    "waiting": "waiting choices",
    "waiting_tokens": "prompt tokens of waiting choices",
    "streams": "open requests",
    "bytes": "bytes of open requests",
    "message": "bytes of a request in the pool's format",
}


class Kind(Enum):
    """HTTP status, `type`, `code`, seconds after which a retry makes sense. The name is the label in the metrics."""

    INVALID = (400, "invalid_request_error", None, None)
    UNSUPPORTED = (400, "invalid_request_error", "unsupported_parameter", None)
    CONTEXT_LENGTH = (400, "invalid_request_error", "context_length_exceeded", None)
    KEY_REUSED = (400, "invalid_request_error", "idempotency_key_reused", None)
    CANCELLED = (400, "invalid_request_error", "request_cancelled", None)
    PREVIOUS_NOT_FOUND = (400, "invalid_request_error", "previous_response_not_found", None)
    MODEL_NOT_FOUND = (404, "invalid_request_error", "model_not_found", None)
    INVALID_KEY = (401, "invalid_request_error", "invalid_api_key", None)
    OPERATOR_ONLY = (403, "invalid_request_error", "operator_only", None)
    UNKNOWN_HOST = (403, "invalid_request_error", "unknown_host", None)
    UNKNOWN_ORIGIN = (403, "invalid_request_error", "unknown_origin", None)
    REQUEST_NOT_FOUND = (404, "invalid_request_error", "request_not_found", None)
    NOT_FOUND = (404, "invalid_request_error", "not_found", None)
    NOT_ENABLED = (404, "invalid_request_error", "not_enabled", None)
    NO_SUCH_OBJECT = (404, "invalid_request_error", "no_such_object", None)
    QUEUE_TIMEOUT = (408, "timeout_error", "queue_timeout", None)
    METHOD_NOT_ALLOWED = (405, "invalid_request_error", "method_not_allowed", None)
    BODY_TOO_LARGE = (413, "invalid_request_error", "request_too_large", None)
    NOT_JSON = (415, "invalid_request_error", "unsupported_media_type", None)
    COMPRESSED = (415, "invalid_request_error", "unsupported_content_encoding", None)
    FILES_FULL = (429, "rate_limit_error", "files_full", None)
    TOO_MANY_BATCHES = (429, "rate_limit_error", "too_many_batches", 60)
    TOO_MANY_LONG = (429, "rate_limit_error", "too_many_long_requests", 1)
    POOL_FULL = (429, "rate_limit_error", "rate_limit_exceeded", 1)
    TOO_MANY_FOLLOWERS = (429, "rate_limit_error", "too_many_followers", 5)
    TOO_MANY_WATCHERS = (429, "rate_limit_error", "too_many_watchers", 5)
    SLOW_READER = (503, "server_error", "slow_reader", 1)
    NO_ENGINE = (503, "server_error", "no_engine", 1)
    POOL_UNAVAILABLE = (503, "server_error", "pool_unavailable", 1)
    FAILED = (500, "server_error", "generation_failed", None)
    DIVERGED = (500, "server_error", "tokens_diverged", None)
    STOPPING = (503, "server_error", "shutting_down", 1)
    INTERNAL = (500, "server_error", "internal_error", None)

    @property
    def status(self) -> int:
        return int(self.value[0])


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(TypedDict):
    error: ErrorObject


class MessageErrorDetail(TypedDict):
    type: str
    message: str


class MessageError(TypedDict):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str | None


class ApiError(Exception):
    """An error for the client. `message` has the value and the limit, `param` names the field; `retry_after`: seconds,
    if different from those of the kind."""

    def __init__(self, kind: Kind, message: str, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after = kind.value[3] if retry_after is None else retry_after

    def body(self) -> ErrorResponse:
        """OpenAI's error object; within a stream it is the data of an event."""
        _, type_, code, _ = self.kind.value
        return {"error": {"message": self.message, "type": type_, "param": self.param, "code": code}}

    def response(self, headers: dict[str, str] | None = None) -> Response:
        headers = dict(headers or {})
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.kind is Kind.QUEUE_TIMEOUT:
            headers["x-should-retry"] = "false"  # otherwise official clients retry after a 408
        return Response(orjson.dumps(self.body()), self.kind.status, headers, "application/json")


class ClientGone(Exception):
    """The client closed its connection."""


class GatewayStops(Exception):
    """The gateway stops; the requests that it followed continue elsewhere."""


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the client of this HTTP request expects Anthropic's errors."""
    path: str = scope["path"]
    of_messages = path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")
    return of_messages or any(name == VERSION_HEADER for name, _ in scope["headers"])


def error_response(error: ApiError, scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """The error in the format that the client of this HTTP request expects."""
    response = error.response(headers)
    if speaks_anthropic(scope):
        status = OVERLOADED if response.status_code == 503 else response.status_code
        body = orjson.dumps(anthropic_error_body(error, scope.get("state", {}).get("request_id")))
        del response.headers["content-length"]  # that of OpenAI's body
        return Response(body, status, dict(response.headers))
    return response


def anthropic_error_body(error: ApiError, request_id: str | None) -> MessageError:
    """Anthropic's error object; within a stream it is the data of an `error` event."""
    type_ = _ANTHROPIC_TYPES.get(error.kind.status, "invalid_request_error")
    details: MessageErrorDetail = {"type": type_, "message": error.message}
    return {"type": "error", "error": details, "request_id": request_id}


def pool_refusal(refusal: Refusal) -> ApiError:
    """The error for a request that the pool refuses: a 400 if an empty pool would refuse it too, else a 429."""
    if refusal.bound == "queue_wait":
        text = (
            f"A request of this API key would wait {refusal.held} s for an engine now, the maximum is "
            f"{refusal.limit} s; try again in {refusal.retry_after} s."
        )
        return ApiError(Kind.POOL_FULL, text, retry_after=refusal.retry_after)
    whose = "API key" if refusal.own else "server"
    what = _BOUNDS[refusal.bound]
    if refusal.for_good:
        text = f"This request needs {refusal.asked} {what}, this {whose} has a limit of {refusal.limit}."
        return ApiError(Kind.INVALID, text)
    text = (
        f"This {whose} has {refusal.held} {what} of at most {refusal.limit}, this request needs {refusal.asked} more; "
        f"try again in {refusal.retry_after} s."
    )
    return ApiError(Kind.POOL_FULL, text, retry_after=refusal.retry_after)
