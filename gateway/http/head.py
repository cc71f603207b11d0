"""HEAD: every route that has GET answers HEAD with the status and the headers of GET."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Answers HEAD as GET without the body. What a GET would stream ends at its head, as if the client had left."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        started = False

        async def heard() -> Message:
            return {"type": "http.disconnect"} if started else await receive()

        async def begin(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        return await self._app({**scope, "method": "GET"}, heard, begin)
