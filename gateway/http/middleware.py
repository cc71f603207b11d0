"""The middleware of every request, from the outside in: request ids, `Host` and `Origin`, API keys, HEAD.

All of it is plain ASGI, so that it costs nothing per chunk of a stream.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError, Kind, error_response, speaks_anthropic
from services.logs import REQUEST, RequestContext
from services.requests import DEFAULT_TENANT
from services.settings.addresses import is_loopback, normalize, parse
from services.settings.settings import Settings
from services.settings.types import digest_of
from services.tracing.tracer import is_traceparent

REQUEST_ID = b"x-request-id"
ANTHROPIC_REQUEST_ID = b"request-id"
MAX_ID_BYTES = 256
SERVER_SEND = "orca.send"  # in the scope: `send` without the middleware below, which only looks at the response's start
PROBES = frozenset({"/health", "/ping", "/ready"})  # requested by address; they contain no information
METRICS = "/metrics"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
ANY = "*"
DOCS = {
    "/openapi.json",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon-32x32.png",
}
# A browser that opens a page sends no key, and the documentation contains no secret.
OPEN_PATHS = PROBES | {METRICS} | DOCS
# routes that change what is served: they need the operator's key, and are off without one
OPERATOR_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_model", "/v1/unload_model"})
MODELS = "/v1/models"  # the operator sees all of the list, and each of it
PAGE = "/ui"  # the live page; its files, which contain no secret either, lie below
FEED = "/ui/feed"

log = logging.getLogger(__name__)


class RequestIdMiddleware:
    """Returns the client's `x-request-id`, and turns uncaught exceptions into error objects."""

    def __init__(self, app: ASGIApp, echo_request_id: bool) -> None:
        self._app = app
        self._echo = echo_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        ids = self._ids(scope)
        REQUEST.set(_context_of(scope))
        scope[SERVER_SEND] = send
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
        given = next((v for k, v in scope["headers"] if k == REQUEST_ID and len(v) <= MAX_ID_BYTES), b"")
        ids = [(REQUEST_ID, given)] if given and self._echo else []
        if speaks_anthropic(scope):
            name = given or b"req_" + secrets.token_hex(12).encode()
            scope.setdefault("state", {})["request_id"] = name.decode("latin-1")
            ids.append((ANTHROPIC_REQUEST_ID, name))
        return ids


def _context_of(scope: Scope) -> RequestContext:
    """What logs and traces say of this HTTP request. Each one runs in a task, and so in a context, of its own."""
    found = RequestContext()
    for name, value in scope["headers"]:
        if name == REQUEST_ID and len(value) <= MAX_ID_BYTES:
            found.x_request_id = value.decode("latin-1")
        elif name == b"traceparent" and is_traceparent(text := value.decode("latin-1")):
            found.traceparent = text
    return found


class OriginMiddleware:
    """Refuses what a browser lets any web page send to a server on its machine, before anything is read.

    Without API keys the address is the only protection of such a server, and a page can reach it in two ways. It can
    have its own name resolve to 127.0.0.1, so that the browser treats the server as part of the page; then `Host` is
    that name. Or it can send a form or a text across origins, which browsers allow without a preflight; then `Origin`
    is that of the page.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset(normalize(name.lower()) for name in settings.allowed_hosts)
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
                f"This server is not called '{host[:100]}'; its operator can add the name to allowed_hosts.",
            )
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in READING and self._is_foreign(origin, host):
            return None if is_json(headers.get("content-type", "")) else _foreign(origin)
        return None

    def _knows(self, host: str, path: str) -> bool:
        """Whether `host`, perhaps with a port, is allowed. It is empty in HTTP/1.0, which browsers do not use.

        Prometheus requests metrics by the address of a pod, and a page cannot have an address resolve to another one.
        """
        name = _host_name(host)
        return not host or name in self._hosts or is_loopback(name) or (path == METRICS and parse(name) is not None)

    def _is_foreign(self, origin: str, host: str) -> bool:
        own = origin.lower().partition("://")[2] == host.lower()
        return not (own or origin in self._origins or ANY in self._origins)


class AuthenticationMiddleware:
    """Sets `request.state.tenant`. `tenants`: the tenant of each key, by the key's hash; if empty, no key is required.
    `operator`: hashes of the operator's keys, which the routes of `OPERATOR_PATHS` require, and with which the list of
    models can be read; `request.state.operator` says whether one was given.

    The lookup uses a keyed hash with a secret of this process, so its duration reveals nothing about the keys.
    """

    def __init__(self, app: ASGIApp, tenants: dict[str, str], operator: Sequence[str] = ()) -> None:
        self._app = app
        self._secret = secrets.token_bytes(32)
        self._operator = {self._keyed_hash(hashed) for hashed in operator}
        self._tenants = {self._keyed_hash(hashed): tenant for hashed, tenant in tenants.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            tenant, path = self._tenant(scope), scope["path"]
            operator = not self._operator.isdisjoint(self._keyed_hash(digest_of(key)) for key in _keys(scope))
            error = self._not_operator(path) if path in OPERATOR_PATHS and not operator else None
            if tenant is None and not (operator and (path in OPERATOR_PATHS or f"{path}/".startswith(f"{MODELS}/"))):
                text = "No API key of this server was given; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                response = error_response(ApiError(Kind.INVALID_KEY, text), scope, {"WWW-Authenticate": "Bearer"})
                return await response(scope, receive, send)
            if error:
                return await error_response(error, scope)(scope, receive, send)
            who = {"tenant": DEFAULT_TENANT if tenant is None else tenant, "operator": operator}
            scope.setdefault("state", {}).update(who)
        return await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        if not self._tenants:
            return DEFAULT_TENANT
        hashes = (self._keyed_hash(digest_of(key)) for key in _keys(scope))
        return next((self._tenants[hashed] for hashed in hashes if hashed in self._tenants), None)

    def _not_operator(self, path: str) -> ApiError:
        """Why a route of `OPERATOR_PATHS` is not for a sender who is not the operator."""
        what = f"{path} changes what this server serves"
        if not self._operator:
            text = f"{what}, so it is off without a key of the operator, who can set operator_api_key."
            return ApiError(Kind.NOT_ENABLED, text)
        return ApiError(Kind.OPERATOR_ONLY, f"{what}: send the key of its operator (operator_api_key).")

    def _keyed_hash(self, hashed: str) -> bytes:
        return hmac.digest(self._secret, hashed.encode(), "sha256")


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


def is_open(path: str) -> bool:
    """Whether a path can be read without an API key."""
    return path in OPEN_PATHS or path == PAGE or (path.startswith(PAGE + "/") and path != FEED)


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is that of JSON, which browsers send across origins only after a preflight."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _host_name(host: str) -> str:
    """The host of a `Host` header, normalized and without its port; empty if the header is malformed."""
    try:
        return normalize(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return ""


def _foreign(origin: str) -> ApiError:
    text = f"The page of '{origin[:100]}' may not send this; the operator of the server can add it to allowed_origins."
    return ApiError(Kind.UNKNOWN_ORIGIN, text)


def _keys(scope: Scope) -> Iterator[str]:
    """The keys of a request. OpenAI's clients send a bearer token, Anthropic's clients either header or both."""
    for name, value in scope["headers"]:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            yield token.strip().decode(errors="replace")
        elif name == b"x-api-key":
            yield value.strip().decode(errors="replace")
