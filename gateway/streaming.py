"""How an answer is sent: as one JSON body, or as server-sent events while it is generated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError, ClientGone, GatewayStops, Kind
from gateway.http.middleware import SERVER_SEND
from gateway.pool_client.following import Generation, size_of
from services.logs import about
from services.messages import TokenEvent

CLIENT_CLOSED_REQUEST = 499  # only access logs show it
KEEP_ALIVE = 15.0  # seconds without an event after which a comment is sent: proxies close idle connections
WRITE_TIMEOUT = 60.0  # seconds within which the client must read what is sent

log = logging.getLogger(__name__)


class WholeAnswer(Protocol):
    """Collects the events of one request."""

    @property
    def ended(self) -> bool: ...

    @property
    def error(self) -> ApiError | None: ...

    def add(self, events: list[TokenEvent]) -> object:
        """Take the next events."""
        ...

    def body(self) -> bytes:
        """The JSON of the answer, once it has ended."""
        ...


class StreamWriter(Protocol):
    """Writes the frames of one stream."""

    @property
    def done(self) -> bool:
        """Whether the last frame has been written."""
        ...

    def write(self, events: list[TokenEvent]) -> bytes:
        """The frames of `events`, perhaps none. Raises ApiError if the request failed before any frame."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """The frame that ends the stream with an error."""
        ...


async def whole_response(generation: Generation, answer: WholeAnswer) -> Response:
    """The response with the whole answer. Closes the generation. Raises ApiError if there is no answer."""
    with generation:
        size = 0
        while not answer.ended:
            events = await generation.take()
            size += size_of(events)
            await generation.work(size_of(events), answer.add, events)
            if answer.error is not None:
                raise answer.error
        return Response(await generation.work(size, answer.body), media_type="application/json")


async def streaming_response(generation: Generation, make_writer: Callable[[], StreamWriter]) -> Response:
    """The response, returned with the first frame so that an earlier error still sets the HTTP status, or after
    `KEEP_ALIVE` seconds. It closes the generation. Raises ApiError, also what `make_writer` raises."""
    until = asyncio.get_running_loop().time() + KEEP_ALIVE
    first = b""
    try:
        writer = make_writer()
        while not first:
            events = await generation.take(until)
            first = await generation.work(size_of(events), writer.write, events) if events else _comment(generation)
    except BaseException:
        generation.close()
        raise
    return EventStream(generation, writer, first)


def _comment(generation: Generation) -> bytes:
    """A comment, which clients ignore, that says what the request waits for."""
    return f": {generation.waits_for() or 'keep-alive'}\n\n".encode()


class EventStream(Response):
    """Writes all events that have arrived whenever the transport accepts more.

    If the gateway stops or the client does not read, the response remains incomplete and the server closes the
    connection. The client can resume the stream later, at any gateway.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, writer: StreamWriter, first: bytes) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Orca-Request": generation.request}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # A task of its own: waking one that is suspended below the whole app goes through each coroutine above it.
            writing = asyncio.create_task(self._send_all(scope.get(SERVER_SEND, send)))
            with _Patience(writing) as self._patience:
                await writing
        except TimeoutError:
            self._closed_because("its client does not read")
        except (ClientGone, OSError):
            log.debug("the client of %s has disconnected", self._generation.request)
        except GatewayStops:
            self._closed_because("this gateway stops")
        finally:
            self._generation.close()

    def _closed_because(self, reason: str) -> None:
        request = self._generation.request
        log.info("the stream of %s is closed: %s", request, reason, extra=about(request))

    async def _send_all(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        body, patience = self._first, self._patience
        while True:
            more = not self._writer.done
            patience.since = now()
            await send({"type": "http.response.body", "body": body, "more_body": more})
            patience.since = None
            if not more:
                return
            body, until = b"", now() + KEEP_ALIVE
            while not body and not self._writer.done:
                body = await self._next(until)

    async def _next(self, until: float) -> bytes:
        """The next frames, perhaps none; a comment at the loop's time `until`."""
        try:
            events = await self._generation.take(until)
            if not events:
                return _comment(self._generation)
            return await self._generation.work(size_of(events), self._writer.write, events)
        except ApiError as error:
            return self._writer.fail(error)
        except (ClientGone, GatewayStops, OSError):
            raise
        except Exception:
            request = self._generation.request
            log.exception("the stream of %s failed", request, extra=about(request))
            return self._writer.fail(ApiError(Kind.INTERNAL, "Internal error."))


class _Patience:
    """Ends a task that sends for more than `WRITE_TIMEOUT` seconds without a pause: `with` then raises TimeoutError.

    `since`: when the current send began, in seconds of the loop's clock; None while there is none. The timer looks at
    it now and then, because `asyncio.timeout` would set and cancel a timer for each token.
    """

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.since: float | None = None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._over = False

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(WRITE_TIMEOUT, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._over and kind is asyncio.CancelledError:
            raise TimeoutError

    def _look(self) -> None:
        now = self._loop.time()
        until = (now if self.since is None else self.since) + WRITE_TIMEOUT
        if until <= now:
            self._over = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(until, self._look)
