"""The Files and Batch APIs: their answers."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from gateway.schemas.answers import Listing


class FileUpload(TypedDict):
    """The parts of the multipart body; `file` is the content."""

    file: bytes
    purpose: Literal["batch"]


FilePurpose = Literal["batch", "batch_output"]


class Expiry(TypedDict):
    expires_at: NotRequired[int]


class FileObject(Expiry):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: FilePurpose
    status: Literal["processed"]


class FileList(Listing):
    data: list[FileObject]


class FileDeleted(TypedDict):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchError(TypedDict):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(TypedDict):
    object: Literal["list"]
    data: list[BatchError]


class BatchCounts(TypedDict):
    total: int
    completed: int
    failed: int


EndStatus = Literal["completed", "failed", "expired", "cancelled"]
BatchStatus = Literal["validating", "in_progress", "finalizing", "cancelling", EndStatus]


class BatchObject(TypedDict):
    """Times in Unix seconds; what is not known yet is null."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, Any] | None


class BatchList(Listing):
    data: list[BatchObject]
