"""API keys: whose key a request carries. Plain ASGI, around all routes."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.anthropic.errors import error_response
from gateway.errors import ApiError, Kind
from services.config import DEFAULT_TENANT
from services.setting_types import digest_of

DOCS = {
    "/openapi.json",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon-32x32.png",
}
# A browser that opens a page sends no key; the document has nothing that is secret.
OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics"} | DOCS)


class Keys:
    """Puts the tenant into the request's state; `tenants` by the key's hash. Without any, no key is asked for.

    What is looked up is a hash with a secret of this process, so the time that it takes says nothing of the keys.
    """

    def __init__(self, app: ASGIApp, tenants: dict[str, str]) -> None:
        self._app = app
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._mark(hashed): tenant for hashed, tenant in tenants.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            tenant = self._tenant(scope)
            if tenant is None:
                text = "No API key of this server was given; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                response = error_response(ApiError(Kind.INVALID_KEY, text), scope, {"WWW-Authenticate": "Bearer"})
                return await response(scope, receive, send)
            scope.setdefault("state", {})["tenant"] = tenant
        return await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        if not self._tenants:
            return DEFAULT_TENANT
        marks = (self._mark(digest_of(key)) for key in _keys(scope))
        return next((self._tenants[mark] for mark in marks if mark in self._tenants), None)

    def _mark(self, hashed: str) -> bytes:
        return hmac.digest(self._secret, hashed.encode(), "sha256")


def _keys(scope: Scope) -> Iterator[str]:
    """OpenAI's clients send a bearer token, Anthropic's the one header or the other, or both."""
    for name, value in scope["headers"]:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            yield token.strip().decode(errors="replace")
        elif name == b"x-api-key":
            yield value.strip().decode(errors="replace")
