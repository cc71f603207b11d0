"""`/ui`, the live page, and `/ui/feed`, its events."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.http.middleware import FEED, PAGE, SERVER_SEND
from gateway.live.feed import LiveFeed
from gateway.live.files import INDEX, PageFiles
from gateway.live.watcher import Watcher

WRITE_TIMEOUT = 60.0  # seconds within which the reader must take what is sent

log = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)


@router.api_route(PAGE, methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    return _files(request).response(INDEX, request.headers.get("if-none-match", ""))


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
    return _files(request).response(name, request.headers.get("if-none-match", ""))


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
