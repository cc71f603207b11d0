"""`/ui`, the live page, whose files are held in memory, and `/ui/feed`, its events."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.errors import ApiError, Kind
from gateway.http.middleware import FEED, PAGE, SERVER_SEND
from gateway.live.feed import LiveFeed, Watcher

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".txt": "text/plain; charset=utf-8",
}
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


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    type: str
    tag: str  # a hash of the content, which a browser sends to ask whether it has changed


class PageFiles:
    """The files of the folder `page`, read once."""

    def __init__(self, demo: bool) -> None:
        found = [path for path in (resources.files("gateway.live") / "page").iterdir() if path.is_file()]
        self._files = {path.name: _file(path.name, path.read_bytes()) for path in found}
        self._headers = {
            "Content-Security-Policy": POLICY.format(demo=DEMO if demo else ""),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-cache",
        }

    def response(self, name: str, known: str) -> Response:
        """The file `name`, or a 304 if `known`, the value of `If-None-Match`, names its content. Raises ApiError."""
        file = self._files.get(name)
        if file is None:
            raise ApiError(Kind.NOT_FOUND, f"There is no file '{name[:100]}'.")
        headers = self._headers | {"ETag": file.tag}
        if file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.type)


def _file(name: str, content: bytes) -> _File:
    suffix = name[name.rfind(".") :]
    return _File(content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
