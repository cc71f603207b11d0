"""`/ui`, the live page, and `/ui/feed`, its events."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from gateway.http.middleware import FEED, PAGE, SERVER_SEND
from gateway.live.feed import LiveFeed, Watcher

INDEX = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{demo}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DEMO = " http://127.0.0.1:*"  # with --demo, the supervisor listens there, on a port that the gateway does not know
WRITE_TIMEOUT = 60.0  # seconds within which the reader must take what is sent
router = APIRouter(include_in_schema=False)

log = logging.getLogger(__name__)


@router.api_route(PAGE, methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    return await _files(request).get_response(INDEX, request.scope)


@router.get(FEED)
async def feed(request: Request) -> Response:
    """What the engines compute, iteration by iteration, and each second the state of the pool, as server-sent events.
    It may lose some. The ids of requests are shown to their own tenant only."""
    live: LiveFeed = request.app.state.live
    return FeedStream(live, live.open(request.state.tenant))


@router.api_route(PAGE + "/{name}", methods=["GET", "HEAD"])
async def file(request: Request, name: str) -> Response:
    if name == INDEX:  # its links are relative to `/ui`
        return RedirectResponse(f"..{PAGE}")
    return await _files(request).get_response(name, request.scope)


def _files(request: Request) -> PageFiles:
    files: PageFiles = request.app.state.page_files
    return files


class FeedStream(Response):
    """Sends a watcher's events until the client goes, reads nothing for `WRITE_TIMEOUT` seconds, or the feed ends."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed, watcher: Watcher) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._watcher = feed, watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            tasks = {
                asyncio.create_task(self._send_all(scope.get(SERVER_SEND, send))),
                asyncio.create_task(_until_gone(receive)),
            }
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._feed.close(self._watcher)

    async def _send_all(self, send: Send) -> None:
        more = True
        try:
            while more:
                body = await self._watcher.take()
                more = not self._watcher.ended
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError as error:  # also TimeoutError
            log.debug("a reader of the live feed is gone: %r", error)
        except Exception:
            log.exception("a live feed failed")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PageFiles(StaticFiles):
    """The files of the folder `page`."""

    def __init__(self, demo: bool) -> None:
        super().__init__(packages=[("gateway.live", "page")])
        self.own_headers = {
            "Content-Security-Policy": POLICY.format(demo=DEMO if demo else ""),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-cache",
        }

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file at `path`, or a 304 if `If-None-Match` names its content. Raises HTTPException."""
        response = await super().get_response(path, scope)
        response.headers.update(self.own_headers)
        return response
