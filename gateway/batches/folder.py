"""BatchFolder: the state of a batch, which is only on disk, and its object in the API.

| | |
|---|---|
| `record` | the request; written last when the batch is created |
| `input` | a link to the content of the input file |
| `segment-<epoch>` | the answers of the owner of this epoch, see `journal.py` |
| `progress` | for clients only |
| `cancel` | the time at which it was cancelled |
| `final` | how the batch ended; creating this file ends it |

All methods block; call them in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gateway.files import disk
from gateway.schemas.batches import BatchError, BatchObject, BatchStatus, EndStatus
from services import wire
from services.errors import Unreadable
from services.files import sync

M = TypeVar("M")

SEGMENT = "segment-"
MAX_CREATION = 3600.0  # seconds that the creation of a batch can take

log = logging.getLogger(__name__)


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


class BatchFolder:
    """The folder of a batch; its name is the batch's id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.tenant = path.parent.parent.name  # the name of the tenant's folder
        self.input = path / "input"

    def create(self, record: BatchRecord, content: Path) -> None:
        """Raises FileNotFoundError if the input's `content` does not exist."""
        self.path.mkdir(parents=True)
        try:
            _link(content, self.input)
            disk.create(self.path / "record", wire.pack(record))
        except BaseException:
            shutil.rmtree(self.path)
            raise
        sync(self.path.parent)

    def record(self) -> BatchRecord | None:
        """None if the batch does not exist or is being created."""
        return _read(self.path / "record", BatchRecord)

    def final(self) -> Final | None:
        return _read(self.path / "final", Final)

    def progress(self) -> Progress | None:
        return _read(self.path / "progress", Progress)

    def save_progress(self, progress: Progress) -> None:
        disk.replace(self.path / "progress", wire.pack(progress), durable=False)

    def cancelled_at(self) -> int | None:
        """Unix seconds."""
        try:
            return int((self.path / "cancel").read_bytes())
        except FileNotFoundError:
            return None

    def cancel(self, now: int) -> None:
        disk.create(self.path / "cancel", str(now).encode())

    def end(self, final: Final) -> bool:
        """Returns False if the batch has ended before."""
        return disk.create(self.path / "final", wire.pack(final))

    def tidy(self) -> None:
        """Remove the files that an ended batch does not need."""
        for path in (self.input, self.path / "progress", *self.path.glob(".progress.*.tmp"), *self.segments()):
            path.unlink(missing_ok=True)

    def segments(self) -> list[Path]:
        """In the order of their epochs."""
        return sorted(self.path.glob(SEGMENT + "*"), key=_epoch)

    def segment(self, epoch: str) -> Path:
        return self.path / f"{SEGMENT}{epoch}"

    def body(self) -> BatchObject | None:
        """OpenAI's batch object; None if the batch does not exist or this build cannot read it."""
        try:
            record = self.record()
            if record is None:
                return None
            progress, cancelled_at = self.progress(), self.cancelled_at()
            return batch_object(record, progress, cancelled_at, self.final())
        except Unreadable as error:  # the tenant's other batches can be listed
            log.warning("%s: %s", self.path, error)
            return None


class BatchFolders:
    """All batches: the folders `<root>/<tenant>/batches/<id>`, and for each unfinished batch a file `<root>/open/<id>`
    with the name of the tenant's folder, so that these are found without a search."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open = root / "open"

    def of_tenant(self, tenant: str) -> list[BatchFolder]:
        """In the order of creation. `tenant`: the name of its folder."""
        folder = self._root / tenant / "batches"
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        return [BatchFolder(folder / name) for name in names]

    def at(self, tenant: str, id: str) -> BatchFolder:
        return BatchFolder(self._root / tenant / "batches" / id)

    def open(self) -> Iterator[BatchFolder]:
        """The unfinished batches in the order of creation."""
        names = os.listdir(self._open) if self._open.is_dir() else []
        for name in sorted(name for name in names if name.startswith("batch_")):
            try:
                tenant = (self._open / name).read_text()
            except FileNotFoundError:
                continue
            yield self.at(tenant, name)

    def mark_open(self, tenant: str, id: str) -> None:
        self._open.mkdir(parents=True, exist_ok=True)
        disk.replace(self._open / id, tenant.encode())

    def forget_uncreated(self, id: str) -> None:
        """Forget an id without a batch if it is old: the process that was creating the batch died."""
        marker = self._open / id
        with contextlib.suppress(FileNotFoundError):
            if marker.stat().st_mtime < time.time() - MAX_CREATION:
                marker.unlink()

    def mark_ended(self, id: str) -> None:
        (self._open / id).unlink(missing_ok=True)


def _link(content: Path, name: Path) -> None:
    """Another name for the same content; a copy if the file system has no links."""
    try:
        os.link(content, name)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(content, name)


def _read(path: Path, kind: type[M]) -> M | None:
    try:
        return wire.unpack(kind, path.read_bytes())
    except FileNotFoundError:
        return None


def _epoch(segment: Path) -> tuple[int, str]:
    epoch = segment.name.removeprefix(SEGMENT)
    return int(epoch.partition("-")[0]), epoch


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
