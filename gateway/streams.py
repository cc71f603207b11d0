"""How an answer leaves: as one JSON body, or as server-sent events while it is made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answer import Answer
from gateway.errors import ApiError, ClientGone, Kind
from gateway.generation import Generation
from gateway.sse import SseWriter, error_frame

CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it is what access logs show

log = logging.getLogger(__name__)


async def whole(generation: Generation, answer: Answer, close: Callable[[Generation], None]) -> Response:
    """The response when all is there. Raises ApiError."""
    try:
        while not answer.ended:
            answer.add(await generation.take())
        return Response(answer.body(), media_type="application/json")
    finally:
        close(generation)


async def streamed(generation: Generation, answer: Answer, close: Callable[[Generation], None]) -> Response:
    """The response once the first event is there: an error before it is still a status. Raises ApiError."""
    writer = SseWriter(answer)
    try:
        first = writer.write(await generation.take())
    except BaseException:
        close(generation)
        raise
    return EventStream(generation, writer, first, close)


class EventStream(Response):
    """Sends what the writer makes of all that has come whenever the transport takes more: no timers."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, writer: SseWriter, first: bytes, close: Callable[[Generation], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._first = first
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send)
        except (ClientGone, OSError):
            log.debug("the client of %s has gone", self._generation.request)
        finally:
            self._close(self._generation)

    async def _send_all(self, send: Send) -> None:
        body, more = self._first, not self._writer.done
        await send({"type": "http.response.body", "body": body, "more_body": more})
        while more:
            try:
                body = self._writer.write(await self._generation.take())
                more = not self._writer.done
            except ApiError as error:
                body, more = error_frame(error), False
            except (ClientGone, asyncio.CancelledError):
                raise
            except Exception:
                log.exception("stream of %s failed", self._generation.request)
                body, more = error_frame(ApiError(Kind.INTERNAL, "Internal error.")), False
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": more})
