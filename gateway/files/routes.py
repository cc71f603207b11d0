"""OpenAI's routes for files."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from gateway.errors import Kind
from gateway.files import disk
from gateway.files.store import FileStore
from gateway.files.upload import receive
from gateway.http.openapi import documented, query
from gateway.http.pages import AFTER, ORDER, limit_of, limit_parameter, newest_first, page, start_of
from gateway.schemas.batches import FileDeleted, FileList, FileObject, FileUpload

MAX_PAGE = 10_000  # files
ERRORS = (Kind.INVALID, Kind.NO_SUCH_OBJECT, Kind.INTERNAL)
LISTING = (
    query("purpose", {"type": "string"}, "Only files of this purpose."),
    ORDER,
    limit_parameter(MAX_PAGE, MAX_PAGE),
    AFTER,
)

router = APIRouter(prefix="/v1/files")


def store_of(request: Request) -> FileStore:
    """The files of the server that received this request."""
    store: FileStore = request.app.state.files
    return store


@router.post(
    "",
    **documented(
        takes=FileUpload,
        takes_type="multipart/form-data",
        gives=FileObject,
        errors=(*ERRORS, Kind.BODY_TOO_LARGE, Kind.FILES_FULL),
    ),
)
async def create(request: Request) -> FileObject:
    """Stores the input file of a batch; `expires_after[anchor]` and `expires_after[seconds]` limit its life."""
    return (await receive(request, store_of(request), request.state.tenant)).body()


@router.get("", **documented(gives=FileList, parameters=LISTING, errors=ERRORS))
async def listed(request: Request) -> Response:
    """The tenant's files."""
    newest, limit = newest_first(request), limit_of(request, MAX_PAGE, MAX_PAGE)
    purpose = request.query_params.get("purpose")

    def body() -> bytes:
        files = store_of(request).all(request.state.tenant, purpose, newest)
        first = start_of(request, [file.id for file in files], "file-", newest)
        chosen = [file.body() for file in files[first : first + limit]]
        return orjson.dumps(page(chosen, len(files) > first + limit))

    return Response(await disk.in_thread(body), media_type="application/json")


@router.get("/{id}", **documented(gives=FileObject, errors=ERRORS))
async def retrieve(request: Request, id: str) -> FileObject:
    """The file object."""
    return (await disk.in_thread(store_of(request).get, request.state.tenant, id)).body()


@router.get("/{id}/content", **documented(binary=True, errors=ERRORS))
async def content(request: Request, id: str) -> Response:
    """The content of the file."""
    store, tenant = store_of(request), request.state.tenant
    file = await disk.in_thread(store.get, tenant, id)
    return FileResponse(store.content(tenant, id), media_type="application/octet-stream", filename=file.filename)


@router.delete("/{id}", **documented(gives=FileDeleted, errors=ERRORS))
async def delete(request: Request, id: str) -> FileDeleted:
    """Deletes the file; a batch that reads it continues."""
    await disk.in_thread(store_of(request).delete, request.state.tenant, id)
    return {"id": id, "object": "file", "deleted": True}
