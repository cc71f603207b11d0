"""The FastAPI app of a gateway: plain ASGI, whoever serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from gateway import docs_routes, server_routes
from gateway.answer.streaming import CLIENT_CLOSED_REQUEST
from gateway.anthropic import routes as messages
from gateway.anthropic.errors import error_response
from gateway.batches import routes as batches
from gateway.batches.runner import BatchRunner
from gateway.doors import Doors
from gateway.errors import ApiError, ClientGone, GatewayStops, Kind
from gateway.files import routes as files
from gateway.gateway import Gateway
from gateway.http.auth import Keys
from gateway.http.envelope import Envelope
from gateway.model import ServedModel
from gateway.openai import routes, stream_routes
from gateway.responses import routes as responses
from services.config import Settings
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool


def create_app(pool: RequestPool, model: ServedModel, settings: Settings, echo_request_id: bool = True) -> FastAPI:
    """The app for `model` on `pool`. Its lifespan connects the pool (or waits for it), reads, beats, and closes it.

    `echo_request_id`: a client's `x-request-id` comes back; false where the server around the app does that, as Ray
    Serve does, or the header would be there twice.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = app.state.gateway = Gateway(pool, model, settings)
        runner = app.state.batch_runner = BatchRunner(gateway)
        await gateway.start()
        runner.start()
        yield
        await runner.stop()
        await gateway.stop()

    app = FastAPI(title="Orca", lifespan=lifespan, openapi_url=None)
    app.include_router(routes.router)
    app.include_router(stream_routes.router)
    app.include_router(responses.router)
    app.include_router(messages.router)
    app.include_router(files.router)
    app.include_router(batches.router)
    app.include_router(server_routes.router)
    app.include_router(docs_routes.router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(PoolUnavailable, _pool_unavailable)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(GatewayStops, _stopping)
    app.add_middleware(Keys, tenants=settings.tenants)
    app.add_middleware(Doors, settings=settings)
    app.add_middleware(Envelope, echo_request_id=echo_request_id)
    if settings.allowed_origins:
        _allow_origins(app, settings)
    return app


def _allow_origins(app: FastAPI, settings: Settings) -> None:
    """CORS around all else: a preflight carries no key, and a page must be able to read errors too."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_credentials=settings.allow_credentials,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        expose_headers=["Orca-Request", "Retry-After", "x-request-id", "request-id"],
    )


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own: no such route, no such method on it."""
    assert isinstance(error, HTTPException)
    kind = Kind.METHOD_NOT_ALLOWED if error.status_code == 405 else Kind.NOT_FOUND
    text = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(ApiError(kind, text), request.scope, dict(error.headers or {}))


async def _pool_unavailable(request: Request, error: Exception) -> Response:
    away = ApiError(Kind.POOL_UNAVAILABLE, "The request pool does not answer; try again later.")
    return error_response(away, request.scope)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _stopping(request: Request, error: Exception) -> Response:
    return error_response(ApiError(Kind.STOPPING, "This gateway is shutting down; ask again."), request.scope)
