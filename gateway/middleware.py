"""Around every response: the client's `x-request-id` comes back, and what nobody caught becomes an error object."""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError, Kind

HEADER = b"x-request-id"
MAX_ID_BYTES = 256

log = logging.getLogger(__name__)


class Envelope:
    """Plain ASGI: nothing is done for the chunks of a stream."""

    def __init__(self, app: ASGIApp, echo_request_id: bool) -> None:
        self._app = app
        self._echo = echo_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((v for k, v in scope["headers"] if k == HEADER and len(v) <= MAX_ID_BYTES), None)
        given = given if self._echo else None
        started = False

        async def begin(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if given is not None:
                    message = {**message, "headers": [*message["headers"], (HEADER, given)]}
            await send(message)

        try:
            await self._app(scope, receive, begin)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            error = ApiError(Kind.INTERNAL, "Internal error; the server's log says more.")
            await error.response()(scope, receive, begin)
        return None
