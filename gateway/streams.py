"""How an answer leaves: as one JSON body, or as server-sent events while it is made."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answer import Answer
from gateway.errors import ApiError, ClientGone, GatewayStops, Kind
from gateway.generation import Generation, size_of
from services.messages import TokenEvent

CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it is what access logs show
KEEP_ALIVE = 15.0  # seconds of silence after which a comment is sent: proxies cut connections that are idle
WRITE_TIMEOUT = 60.0  # seconds in which a client that does not read must take what is sent
COMMENT = b": keep-alive\n\n"

log = logging.getLogger(__name__)


class Writer(Protocol):
    """Makes the frames of one stream."""

    @property
    def done(self) -> bool:
        """The last frame was made."""
        ...

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames that `events` make, maybe none. Raises ApiError when a failure is all there is to say."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """The frame that ends the stream with an error."""
        ...


async def whole(generation: Generation, answer: Answer) -> Response:
    """The response when all is there. Closes the generation. Raises ApiError."""
    with generation:
        size = 0
        while not answer.ended:
            events = await generation.take()
            size += size_of(events)
            await generation.work(size_of(events), answer.add, events)
            if answer.error is not None:
                raise answer.error
        return Response(await generation.work(size, answer.body), media_type="application/json")


async def streamed(generation: Generation, writer: Writer) -> Response:
    """The response once there is something to say, so that an error before it is still a status; after `KEEP_ALIVE`
    seconds in any case. It closes the generation. Raises ApiError."""
    until = asyncio.get_running_loop().time() + KEEP_ALIVE
    first = b""
    try:
        while not first:
            events = await generation.take(until)
            first = await generation.work(size_of(events), writer.write, events) if events else COMMENT
    except BaseException:
        generation.close()
        raise
    return EventStream(generation, writer, first)


class EventStream(Response):
    """Sends what the writer makes of all that has come whenever the transport takes more.

    When the gateway stops, or the client does not read, the response stays incomplete: the server breaks the
    connection, and the client may go on elsewhere, or later.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, writer: Writer, first: bytes) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Orca-Request": generation.request}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send_all(send)
        except TimeoutError:
            log.info("the stream of %s breaks: its client does not read", self._generation.request)
        except (ClientGone, OSError):
            log.debug("the client of %s has gone", self._generation.request)
        except GatewayStops:
            log.info("the stream of %s breaks: this gateway stops", self._generation.request)
        finally:
            self._generation.close()

    async def _send_all(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        body = self._first
        while True:
            more = not self._writer.done
            async with asyncio.timeout(WRITE_TIMEOUT):
                await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return
            body, until = b"", now() + KEEP_ALIVE
            while not body and not self._writer.done:
                body = await self._next(until)

    async def _next(self, until: float) -> bytes:
        """What to send next, maybe nothing; a comment at the loop's time `until`."""
        try:
            events = await self._generation.take(until)
            if not events:
                return COMMENT
            return await self._generation.work(size_of(events), self._writer.write, events)
        except ApiError as error:
            return self._writer.fail(error)
        except (ClientGone, GatewayStops, OSError):
            raise
        except Exception:
            log.exception("stream of %s failed", self._generation.request)
            return self._writer.fail(ApiError(Kind.INTERNAL, "Internal error."))
