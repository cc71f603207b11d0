"""Middleware of every request: it returns the client's `x-request-id` and turns uncaught exceptions into errors."""

from __future__ import annotations

import logging
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError, Kind, error_response, speaks_anthropic

HEADER = b"x-request-id"
ANTHROPIC_HEADER = b"request-id"
MAX_ID_BYTES = 256

log = logging.getLogger(__name__)


class RequestIdMiddleware:
    """Plain ASGI, so that it costs nothing per chunk of a stream."""

    def __init__(self, app: ASGIApp, echo_request_id: bool) -> None:
        self._app = app
        self._echo = echo_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        ids = self._ids(scope)
        started = False

        async def begin(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], *ids]}
            await send(message)

        try:
            await self._app(scope, receive, begin)
        except Exception:
            log.exception("%s %s failed %s", scope["method"], scope["path"], [id.decode("latin-1") for _, id in ids])
            if started:
                raise
            error = ApiError(Kind.INTERNAL, "Internal error; the server's log says more.")
            await error_response(error, scope)(scope, receive, begin)
        return None

    def _ids(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers that identify this HTTP request. Anthropic's clients always expect one, also in errors."""
        given = next((v for k, v in scope["headers"] if k == HEADER and len(v) <= MAX_ID_BYTES), b"")
        ids = [(HEADER, given)] if given and self._echo else []
        if speaks_anthropic(scope):
            name = given or b"req_" + secrets.token_hex(12).encode()
            scope.setdefault("state", {})["request_id"] = name.decode("latin-1")
            ids.append((ANTHROPIC_HEADER, name))
        return ids
