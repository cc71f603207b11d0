"""The FastAPI app of a gateway: its routes, middleware and error handlers."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from gateway import endpoints, server_routes
from gateway.anthropic import routes as anthropic_routes
from gateway.batches import routes as batches_routes
from gateway.batches.folder import BatchFolders
from gateway.batches.runner import BatchRunner
from gateway.errors import POOL_AWAY, ApiError, ClientGone, GatewayStops, Kind, error_response
from gateway.files import routes as files_routes
from gateway.files.store import FileStore
from gateway.gateway import GatewayProcess, ModelPools
from gateway.http import openapi
from gateway.http.middleware import AuthenticationMiddleware, HeadMiddleware, OriginMiddleware, RequestIdMiddleware
from gateway.live import routes as live_routes
from gateway.live.feed import LiveFeed
from gateway.live.routes import PageFiles
from gateway.responses import routes as responses_routes
from gateway.streaming import CLIENT_CLOSED_REQUEST
from services.errors import PoolUnavailable
from services.limits import return_memory
from services.settings.settings import Settings

SWITCH_INTERVAL = 0.001  # seconds that a thread may run while the event loop waits; Python's default of 5 ms adds up


def create_app(models: Sequence[ModelPools], settings: Settings, echo_request_id: bool = True) -> FastAPI:
    """The app that serves `models`. Its lifespan runs the gateway, which connects to their pools and closes them.

    `echo_request_id`: return a client's `x-request-id`; false if the server around the app does so, as Ray Serve does.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway = app.state.gateway = GatewayProcess(models, settings)
        live = app.state.live = LiveFeed(gateway, settings.demo)
        app.state.files = FileStore(settings.files_folder, settings.constants)
        app.state.batches = BatchFolders(settings.files_folder)
        runner = app.state.batch_runner = BatchRunner(gateway, app.state.batches, app.state.files)
        await gateway.start()
        runner.start()
        yield
        await runner.stop()
        await live.stop()
        await gateway.stop()

    app = FastAPI(title="Orca", lifespan=lifespan, openapi_url=None)
    app.include_router(endpoints.router)
    app.include_router(responses_routes.router)
    app.include_router(anthropic_routes.router)
    app.include_router(files_routes.router)
    app.include_router(batches_routes.router)
    app.include_router(server_routes.router)
    app.include_router(openapi.router)
    if not settings.disable_ui:
        app.include_router(live_routes.router)
        app.state.page_files = PageFiles(settings.demo)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(PoolUnavailable, _pool_unavailable)
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(GatewayStops, _stopping)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthenticationMiddleware, tenants=settings.tenants, operator=settings.operator_api_key)
    app.add_middleware(OriginMiddleware, settings=settings)
    app.add_middleware(RequestIdMiddleware, echo_request_id=echo_request_id)
    if settings.allowed_origins:
        _allow_origins(app, settings)
    return app


def _allow_origins(app: FastAPI, settings: Settings) -> None:
    """CORS is the outermost middleware: a preflight carries no key, and pages must be able to read errors."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["Orca-Request", "Retry-After", "x-request-id", "request-id"],
    )


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """An error of the framework: an unknown route or method."""
    assert isinstance(error, HTTPException)
    kind = Kind.METHOD_NOT_ALLOWED if error.status_code == 405 else Kind.NOT_FOUND
    text = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return error_response(ApiError(kind, text), request.scope, dict(error.headers or {}))


async def _pool_unavailable(request: Request, error: Exception) -> Response:
    unavailable = ApiError(Kind.POOL_UNAVAILABLE, POOL_AWAY)
    return error_response(unavailable, request.scope)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _stopping(request: Request, error: Exception) -> Response:
    return error_response(ApiError(Kind.STOPPING, "This gateway is shutting down; ask again."), request.scope)


def prepare_process() -> None:
    """To be called once all modules and the tokenizer are loaded. Garbage collection skips these objects, which would
    block the event loop for 100 ms, memory that only the start needed is returned, and threads yield to the event loop
    sooner."""
    gc.collect()
    gc.freeze()
    return_memory()
    sys.setswitchinterval(SWITCH_INTERVAL)
