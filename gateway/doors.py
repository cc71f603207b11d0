"""What a browser lets any web page send to a server of its user: refused before anything is read. Plain ASGI.

Without API keys the address is all that protects a server on this machine, and a page reaches it in two ways. It may
have a name of its own resolve to 127.0.0.1, so that the browser takes the server for a part of the page; then `Host` is
that name. Or it may send a form or a text across origins, for which browsers do not ask; then `Origin` is the page's.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError, Kind, error_response
from services.addresses import bare, parsed
from services.config import Settings
from services.exposure import is_loopback

PROBES = frozenset({"/health", "/ping", "/ready"})  # asked by address, and they say nothing
METRICS = "/metrics"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
ANY = "*"


class Doors:
    """Checks `Host`, and the `Origin` of what browsers send without asking. Who shows an API key is no web page."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset(bare(name.lower()) for name in settings.allowed_hosts)
        self._any_host = ANY in self._hosts or not (self._hosts or is_loopback(settings.host))
        self._origins = frozenset(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refused(scope)):
            return await error_response(error, scope)(scope, receive, send)
        return await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not (self._any_host or scope["path"] in PROBES or self._knows(host, scope["path"])):
            return ApiError(
                Kind.UNKNOWN_HOST,
                f"This server is not called '{host[:100]}'; whoever runs it may add the name to allowed_hosts.",
            )
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in READING and self._is_foreign(origin, host):
            return None if is_json(headers.get("content-type", "")) else _foreign(origin)
        return None

    def _knows(self, host: str, path: str) -> bool:
        """Whether `host`, perhaps with a port, is allowed; none at all is HTTP/1.0, which browsers do not speak.

        Prometheus asks pods by their addresses. An address is no name that a page can have resolve to another.
        """
        name = _name(host)
        return not host or name in self._hosts or is_loopback(name) or (path == METRICS and parsed(name) is not None)

    def _is_foreign(self, origin: str, host: str) -> bool:
        own = urlsplit(origin).netloc.lower() == host.lower()
        return not (own or origin in self._origins or ANY in self._origins)


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is one of JSON; browsers ask the server before a page may send it across origins."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def check_json(headers: Headers) -> None:
    """Raises ApiError unless the body is said to be JSON, or nothing is said of it: pages that do so are refused."""
    given = headers.get("content-type", "")
    if given and not is_json(given):
        text = f"The body's Content-Type is '{given[:100]}'; send it as application/json"
        raise ApiError(Kind.NOT_JSON, f"{text} (curl: -H 'Content-Type: application/json').")


def _name(host: str) -> str:
    """`host` of a header without its port."""
    try:
        return bare(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return ""


def _foreign(origin: str) -> ApiError:
    text = f"The page of '{origin[:100]}' may not send this; whoever runs the server may add it to allowed_origins."
    return ApiError(Kind.UNKNOWN_ORIGIN, text)
