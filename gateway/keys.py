"""API keys: whose key a request carries. Plain ASGI, around all routes."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError, Kind
from services.config import DEFAULT_TENANT

DOCS = {
    "/openapi.json",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon-32x32.png",
}
# A browser that opens a page sends no key; the document says nothing that the source does not.
OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics"} | DOCS)


class Keys:
    """Puts the tenant into the request's state; `tenants` by key. Without any, no key is asked for."""

    def __init__(self, app: ASGIApp, tenants: dict[str, str]) -> None:
        self._app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            tenant = self._tenant(scope)
            if tenant is None:
                text = "No API key of this server was given; send 'Authorization: Bearer KEY'."
                response = ApiError(Kind.INVALID_KEY, text).response({"WWW-Authenticate": "Bearer"})
                return await response(scope, receive, send)
            scope.setdefault("state", {})["tenant"] = tenant
        return await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        if not self._tenants:
            return DEFAULT_TENANT
        given: bytes = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return self._tenants.get(key.strip().decode(errors="replace")) if scheme.lower() == b"bearer" else None
