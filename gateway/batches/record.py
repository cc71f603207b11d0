"""The stored data of a batch, and its object in the API."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.schemas.batches import BatchError, BatchObject, BatchStatus, EndStatus


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The request, which never changes. Times in Unix seconds, `output_life` in seconds."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    model: str
    metadata: dict[str, str] | None = None
    output_life: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of lines: all, in the output file, in the error file."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an owner, written periodically."""

    in_progress_at: int
    counts: Counts = field(default_factory=Counts)
    finalizing_at: int | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """How the batch ended; written once."""

    status: EndStatus
    at: int
    progress: Progress | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[BatchError] | None = None


def batch_object(
    record: BatchRecord, progress: Progress | None, cancelling_at: int | None, final: Final | None
) -> BatchObject:
    """OpenAI's batch object; what is not known yet is null."""
    progress = final.progress if final else progress
    counts = progress.counts if progress else Counts()
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model,
        "errors": {"object": "list", "data": final.errors} if final and final.errors else None,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": _status(progress, cancelling_at, final),
        "output_file_id": final.output_file_id if final else None,
        "error_file_id": final.error_file_id if final else None,
        "created_at": record.created_at,
        "in_progress_at": progress.in_progress_at if progress else None,
        "expires_at": record.expires_at,
        "finalizing_at": progress.finalizing_at if progress else None,
        "completed_at": _ended(final, "completed"),
        "failed_at": _ended(final, "failed"),
        "expired_at": _ended(final, "expired"),
        "cancelling_at": cancelling_at,
        "cancelled_at": _ended(final, "cancelled"),
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "metadata": record.metadata,
    }


def _status(progress: Progress | None, cancelling_at: int | None, final: Final | None) -> BatchStatus:
    if final is not None:
        return final.status
    if cancelling_at is not None:
        return "cancelling"
    if progress is None:
        return "validating"
    return "in_progress" if progress.finalizing_at is None else "finalizing"


def _ended(final: Final | None, status: EndStatus) -> int | None:
    return final.at if final and final.status == status else None
