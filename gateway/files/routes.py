"""OpenAI's routes for files."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from gateway.documented import documented, query
from gateway.errors import ApiError, Kind
from gateway.files import disk
from gateway.files.pages import AFTER, after_of, limit_of, limit_query, page
from gateway.files.upload import receive
from gateway.gateway import of
from gateway.schemas.file_answers import FileDeleted, FileList, FileObject, FileUpload

MOST = 10_000  # files of a page
ORDERS = {"asc": False, "desc": True}
ERRORS = (Kind.INVALID, Kind.NO_SUCH_OBJECT, Kind.INTERNAL)
LISTING = (
    query("purpose", {"type": "string"}, "Files of this purpose alone."),
    query("order", {"type": "string", "enum": list(ORDERS), "default": "desc"}, "desc: the newest first."),
    limit_query(MOST, MOST),
    AFTER,
)

router = APIRouter(prefix="/v1/files")


@router.post(
    "",
    **documented(
        takes=FileUpload,
        takes_type="multipart/form-data",
        gives=FileObject,
        errors=(*ERRORS, Kind.BODY_TOO_LARGE, Kind.FILES_FULL),
    ),
)
async def create(request: Request) -> dict[str, Any]:
    """Stores a file of lines for a batch; `expires_after[anchor]` and `expires_after[seconds]` may say how long."""
    return (await receive(request, of(request).files, request.state.tenant)).body()


@router.get("", **documented(gives=FileList, parameters=LISTING, errors=ERRORS))
async def listed(request: Request) -> Response:
    """The tenant's files."""
    order, purpose = request.query_params.get("order", "desc"), request.query_params.get("purpose")
    if order not in ORDERS:
        raise ApiError(Kind.INVALID, f"Invalid 'order': must be 'asc' or 'desc' (got '{order[:50]}').", "order")
    limit, newest_first = limit_of(request, MOST, MOST), ORDERS[order]

    def body() -> bytes:
        files = of(request).files.all(request.state.tenant, purpose, newest_first)
        first = after_of(request, [file.id for file in files], newest_first)
        chosen = [file.body() for file in files[first : first + limit]]
        return orjson.dumps(page(chosen, len(files) > first + limit))

    return Response(await disk.in_thread(body), media_type="application/json")


@router.get("/{id}", **documented(gives=FileObject, errors=ERRORS))
async def retrieve(request: Request, id: str) -> dict[str, Any]:
    """The file object."""
    return (await disk.in_thread(of(request).files.get, request.state.tenant, id)).body()


@router.get("/{id}/content", **documented(binary=True, errors=ERRORS))
async def content(request: Request, id: str) -> Response:
    """The file's content, as it was uploaded or written by a batch."""
    store, tenant = of(request).files, request.state.tenant
    file = await disk.in_thread(store.get, tenant, id)
    return FileResponse(store.content(tenant, id), media_type="application/octet-stream", filename=file.filename)


@router.delete("/{id}", **documented(gives=FileDeleted, errors=ERRORS))
async def delete(request: Request, id: str) -> dict[str, Any]:
    """Deletes the file; a batch that reads it goes on."""
    await disk.in_thread(of(request).files.delete, request.state.tenant, id)
    return {"id": id, "object": "file", "deleted": True}
