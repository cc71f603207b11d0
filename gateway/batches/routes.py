"""OpenAI's routes for batches. A batch can ask every endpoint that is registered as one for batches."""

from __future__ import annotations

import re
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, StringConstraints

from gateway.batches.folder import BatchFolder, BatchFolders, BatchRecord
from gateway.endpoints import BATCHED
from gateway.errors import ApiError, Kind
from gateway.files import disk
from gateway.files.routes import store_of
from gateway.files.store import FileStore, new_id, tenant_folder
from gateway.gateway import gateway_of
from gateway.http.body import parse
from gateway.http.openapi import BODY_ERRORS, documented
from gateway.http.pages import AFTER, limit_of, limit_parameter, page, start_of
from gateway.schemas.batches import BatchList, BatchObject
from gateway.schemas.strict import Strict

MAX_WINDOW = 30 * 86_400  # seconds
_WINDOW = re.compile(r"([0-9]{1,7})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def window_seconds(window: str) -> int:
    """The seconds of a completion window, a number with a unit such as `24h`. Raises ValueError."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= MAX_WINDOW:
        raise ValueError(f"must be a number of s, m, h or d, like '24h', at most {MAX_WINDOW // 86_400}d")
    return seconds


def _checked(window: str) -> str:
    window_seconds(window)
    return window


class ExpiresAfter(Strict):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchRequest(Strict):
    input_file_id: Annotated[str, Field(max_length=100)]
    endpoint: Literal[BATCHED]  # type: ignore[valid-type]  # mypy knows literals in the source alone
    completion_window: Annotated[str, AfterValidator(_checked)]
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


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
    folder = await disk.in_thread(_create, store, batches, gateway.first.model.name, request.state.tenant, fields)
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
