"""The Files and Batch APIs: their requests and answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, StringConstraints
from typing_extensions import TypedDict

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
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Annotated[str, AfterValidator(_checked)]
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


class FileUpload(TypedDict):
    """The parts of the multipart body; `file` is the content."""

    file: bytes
    purpose: Literal["batch"]


class FileObject(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    expires_at: NotRequired[int]


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str
    last_id: str
    has_more: bool


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


class BatchObject(TypedDict):
    """Times in Unix seconds; what is not known yet is null."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
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


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str
    last_id: str
    has_more: bool
