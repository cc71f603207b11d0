"""OpenAI's routes for files."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from gateway.errors import ApiError, Kind
from gateway.files.pages import after_of, limit_of, page
from gateway.files.upload import receive
from gateway.gateway import of

MOST = 10_000  # files of a page
ORDERS = {"asc": False, "desc": True}

router = APIRouter(prefix="/v1/files")


@router.post("")
async def create(request: Request) -> dict[str, Any]:
    return (await receive(request, of(request).files, request.state.tenant)).body()


@router.get("")
async def listed(request: Request) -> dict[str, Any]:
    order, purpose = request.query_params.get("order", "desc"), request.query_params.get("purpose")
    if order not in ORDERS:
        raise ApiError(Kind.INVALID, f"Invalid 'order': must be 'asc' or 'desc' (got '{order[:50]}').", "order")
    limit, newest_first = limit_of(request, MOST, MOST), ORDERS[order]
    files = await asyncio.to_thread(of(request).files.all, request.state.tenant, purpose, newest_first)
    first = after_of(request, [file.id for file in files], newest_first)
    return page([file.body() for file in files[first : first + limit]], len(files) > first + limit)


@router.get("/{id}")
async def retrieve(request: Request, id: str) -> dict[str, Any]:
    return (await asyncio.to_thread(of(request).files.get, request.state.tenant, id)).body()


@router.get("/{id}/content")
async def content(request: Request, id: str) -> Response:
    store, tenant = of(request).files, request.state.tenant
    file = await asyncio.to_thread(store.get, tenant, id)
    return FileResponse(store.content(tenant, id), media_type="application/octet-stream", filename=file.filename)


@router.delete("/{id}")
async def delete(request: Request, id: str) -> dict[str, Any]:
    await asyncio.to_thread(of(request).files.delete, request.state.tenant, id)
    return {"id": id, "object": "file", "deleted": True}
