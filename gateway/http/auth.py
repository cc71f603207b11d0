"""Authentication: the API key of a request determines its tenant."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError, Kind, error_response
from services.config import DEFAULT_TENANT
from services.setting_types import digest_of

DOCS = {
    "/openapi.json",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon-32x32.png",
}
# A browser that opens a page sends no key, and the documentation contains no secret.
OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics"} | DOCS)


class AuthenticationMiddleware:
    """Sets `request.state.tenant`. `tenants`: the tenant of each key, by the key's hash; if empty, no key is required.

    The lookup uses a keyed hash with a secret of this process, so its duration reveals nothing about the keys.
    """

    def __init__(self, app: ASGIApp, tenants: dict[str, str]) -> None:
        self._app = app
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._keyed_hash(hashed): tenant for hashed, tenant in tenants.items()}

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
        hashes = (self._keyed_hash(digest_of(key)) for key in _keys(scope))
        return next((self._tenants[hashed] for hashed in hashes if hashed in self._tenants), None)

    def _keyed_hash(self, hashed: str) -> bytes:
        return hmac.digest(self._secret, hashed.encode(), "sha256")


def _keys(scope: Scope) -> Iterator[str]:
    """The keys of a request. OpenAI's clients send a bearer token, Anthropic's clients either header or both."""
    for name, value in scope["headers"]:
        scheme, _, token = value.partition(b" ")
        if name == b"authorization" and scheme.lower() == b"bearer":
            yield token.strip().decode(errors="replace")
        elif name == b"x-api-key":
            yield value.strip().decode(errors="replace")
