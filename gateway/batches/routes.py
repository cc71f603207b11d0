"""OpenAI's routes for batches."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from gateway.batches.folder import BatchFolder, BatchFolders
from gateway.batches.record import BatchRecord
from gateway.batches.request import BatchRequest, window_seconds
from gateway.errors import ApiError, Kind
from gateway.files import disk
from gateway.files.routes import store_of
from gateway.files.store import FileStore, new_id, tenant_folder
from gateway.gateway import gateway_of
from gateway.http.body import parse
from gateway.http.documented import BODY_ERRORS, documented
from gateway.http.pages import AFTER, limit_of, limit_parameter, page, start_of
from gateway.schemas.batches import BatchList, BatchObject

DEFAULT_PAGE, MAX_PAGE = 20, 100
MAX_OPEN = 100  # unfinished batches per tenant

LISTING = (limit_parameter(DEFAULT_PAGE, MAX_PAGE), AFTER)
ERRORS = (Kind.INVALID, Kind.NO_SUCH_OBJECT, Kind.INTERNAL)

router = APIRouter(prefix="/v1/batches")


@router.post(
    "",
    **documented(
        takes=BatchRequest,
        gives=BatchObject,
        errors=(*BODY_ERRORS, Kind.NO_SUCH_OBJECT, Kind.TOO_MANY_BATCHES, Kind.FILES_FULL),
    ),
)
async def create(request: Request) -> BatchObject:
    """Begins to answer the lines of a file, after all other requests."""
    gateway = gateway_of(request)
    fields = await parse(request, BatchRequest, gateway.limits)
    store, batches = store_of(request), _batches(request)
    folder = await disk.in_thread(_create, store, batches, gateway.model.name, request.state.tenant, fields)
    return await _body(folder)


@router.get("", **documented(gives=BatchList, parameters=LISTING, errors=ERRORS))
async def listed(request: Request) -> BatchList:
    """The tenant's batches, the newest first."""
    limit = limit_of(request, DEFAULT_PAGE, MAX_PAGE)
    folders = await disk.in_thread(_batches(request).of_tenant, tenant_folder(request.state.tenant))
    folders.reverse()
    first = start_of(request, [folder.id for folder in folders], "batch_", newest_first=True)
    bodies = await disk.in_thread(lambda: [folder.body() for folder in folders[first : first + limit]])
    return page([body for body in bodies if body is not None], len(folders) > first + limit)


@router.get("/{id}", **documented(gives=BatchObject, errors=ERRORS))
async def retrieve(request: Request, id: str) -> BatchObject:
    """The batch with its progress."""
    return await _body(_found(request, id))


@router.post("/{id}/cancel", **documented(gives=BatchObject, errors=ERRORS))
async def cancel(request: Request, id: str) -> BatchObject:
    """Ends a batch; its answers so far remain available."""
    folder = _found(request, id)
    status = (await _body(folder))["status"]
    if status in ("completed", "failed", "expired"):
        raise ApiError(Kind.INVALID, f"Batch '{id}' cannot be cancelled any more: it is {status}.")
    if status != "cancelled":
        await disk.in_thread(folder.cancel, int(time.time()))
    return await _body(folder)


def _create(store: FileStore, batches: BatchFolders, model: str, tenant: str, fields: BatchRequest) -> BatchFolder:
    name = tenant_folder(tenant)
    try:
        store.get(tenant, fields.input_file_id)
    except ApiError as error:
        raise ApiError(error.kind, error.message, "input_file_id") from None
    open_ = sum(folder.tenant == name for folder in batches.open())
    if open_ >= MAX_OPEN:
        text = f"{open_} batches have not ended, at most {MAX_OPEN} of a tenant are accepted; try again later."
        raise ApiError(Kind.TOO_MANY_BATCHES, text)
    store.check_count(tenant)  # the results will be files
    now = int(time.time())
    record = BatchRecord(
        id=f"batch_{new_id()}",
        tenant=tenant,
        endpoint=fields.endpoint,
        input_file_id=fields.input_file_id,
        completion_window=fields.completion_window,
        created_at=now,
        expires_at=now + window_seconds(fields.completion_window),
        model=model,
        metadata=fields.metadata,
        output_life=fields.output_expires_after.seconds if fields.output_expires_after else None,
    )
    folder = batches.at(name, record.id)
    batches.mark_open(name, record.id)  # before it is created, so that every existing batch is found
    try:
        folder.create(record, store.content(tenant, fields.input_file_id))
    except FileNotFoundError:
        batches.mark_ended(record.id)
        text = f"There is no file '{fields.input_file_id}' (any more)."
        raise ApiError(Kind.NO_SUCH_OBJECT, text, "input_file_id") from None
    except OSError:
        if folder.record() is None:
            batches.mark_ended(record.id)
        raise
    return folder


def _batches(request: Request) -> BatchFolders:
    batches: BatchFolders = request.app.state.batches
    return batches


def _found(request: Request, id: str) -> BatchFolder:
    if not (id.startswith("batch_") and id.removeprefix("batch_").isalnum() and len(id) < 64):
        raise _missing(id)
    return _batches(request).at(tenant_folder(request.state.tenant), id)


async def _body(folder: BatchFolder) -> BatchObject:
    body = await disk.in_thread(folder.body)
    if body is None:
        raise _missing(folder.id)
    return body


def _missing(id: str) -> ApiError:
    return ApiError(Kind.NO_SUCH_OBJECT, f"There is no batch '{id[:100]}'.", "id")
