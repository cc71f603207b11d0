"""`/openapi.json`, and `/docs`: Swagger UI for it. Its files come from an installed package, not from other servers."""

from __future__ import annotations

import asyncio
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import JSONResponse, Response

from gateway.errors import ApiError, Kind
from gateway.http.openapi import document

FILES = {
    "swagger-ui-bundle.js": "application/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
A_DAY = {"Cache-Control": "public, max-age=86400"}

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document; the first call makes it, in a thread."""
    made = await asyncio.to_thread(document, request.app)
    return JSONResponse(made)  # not orjson: a seed has a bound of more than 64 bits


@router.get("/docs")
async def page() -> Response:
    """Addresses are relative: a proxy may serve all of it under a prefix."""
    return get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Orca",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon-32x32.png",
        swagger_ui_parameters={"validatorUrl": None},  # else the page asks a server on the net
    )


@router.get("/docs/{name}")
async def file(name: str) -> Response:
    if name not in FILES:
        raise ApiError(Kind.NOT_FOUND, f"There is no file '{name[:100]}'.")
    content = await asyncio.to_thread((resources.files("fastapi_swagger") / "resources" / name).read_bytes)
    return Response(content, media_type=FILES[name], headers=A_DAY)
