"""BatchFolder: a batch on disk, which is all there is of it.

| | |
|---|---|
| `record` | what was asked for, written last when the batch is created |
| `input` | a link to the content of the input file |
| `segment-<epoch>` | what the owner of this epoch has answered, see `segments.py` |
| `progress` | for clients that look; nothing depends on it |
| `cancel` | when it was cancelled |
| `final` | how it ended: whoever creates it first has ended the batch |

All methods block; call them in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from gateway.batches.record import BatchRecord, Final, Progress, batch_object
from gateway.files import disk
from services import wire
from services.errors import Unreadable

M = TypeVar("M")

log = logging.getLogger(__name__)

SEGMENT = "segment-"
STILLBORN = 3600.0  # seconds that the creation of a batch takes at most


class BatchFolder:
    """At `path`; its name is the batch's id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.tenant = path.parent.parent.name  # the name of its folder
        self.input = path / "input"

    def create(self, record: BatchRecord, content: Path) -> None:
        """Raises FileNotFoundError where the input's `content` is gone."""
        self.path.mkdir(parents=True)
        try:
            _link(content, self.input)
            disk.create(self.path / "record", wire.pack(record))
        except BaseException:
            shutil.rmtree(self.path)
            raise
        disk.sync_folder(self.path.parent)

    def record(self) -> BatchRecord | None:
        """None where there is no such batch, or it is just being created."""
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
        """False where it has ended before."""
        return disk.create(self.path / "final", wire.pack(final))

    def tidy(self) -> None:
        """It has ended: remove what only its lines needed."""
        for path in (self.input, self.path / "progress", *self.path.glob(".progress.*.tmp"), *self.segments()):
            path.unlink(missing_ok=True)

    def segments(self) -> list[Path]:
        """By epoch."""
        return sorted(self.path.glob(SEGMENT + "*"), key=_epoch)

    def segment(self, epoch: str) -> Path:
        return self.path / f"{SEGMENT}{epoch}"

    def body(self) -> dict[str, Any] | None:
        """OpenAI's batch object; None where there is no such batch, or none that this build can read."""
        try:
            record = self.record()
            if record is None:
                return None
            progress, cancelled_at = self.progress(), self.cancelled_at()
            return batch_object(record, progress, cancelled_at, self.final())
        except Unreadable as error:  # the tenant's others are well
            log.warning("%s: %s", self.path, error)
            return None


class BatchFolders:
    """All batches: `<root>/<tenant>/batches/<id>`, and under `<root>/open/` a file `<id>` with the tenant's folder for
    each that has not ended, so that nobody need look through the others."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open = root / "open"

    def of_tenant(self, tenant: str) -> list[BatchFolder]:
        """`tenant` is the name of its folder. By creation."""
        folder = self._root / tenant / "batches"
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        return [BatchFolder(folder / name) for name in names]

    def at(self, tenant: str, id: str) -> BatchFolder:
        return BatchFolder(self._root / tenant / "batches" / id)

    def open(self) -> Iterator[BatchFolder]:
        """Those that have not ended, by creation."""
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

    def forget_stillborn(self, id: str) -> None:
        """There is no batch of this id yet. After a while there will be none: whoever created it died."""
        marker = self._open / id
        with contextlib.suppress(FileNotFoundError):
            if marker.stat().st_mtime < time.time() - STILLBORN:
                marker.unlink()

    def mark_ended(self, id: str) -> None:
        (self._open / id).unlink(missing_ok=True)


def _link(content: Path, name: Path) -> None:
    """The same content under another name; a copy where the file system has no links."""
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
