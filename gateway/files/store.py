"""FileStore: a folder of files per tenant, each with `<id>.data`, and `<id>.json` once it is complete.

All methods except `body` block: they are for threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import orjson

from gateway.errors import ApiError, Kind
from gateway.files import disk

STALE = 86_400.0  # seconds after which an incomplete file is that of a killed process
log = logging.getLogger(__name__)
_ID = re.compile(r"file-[0-9a-f]{32}")


def new_id() -> str:
    """32 hexadecimal digits that begin with the time, so that ids sort by creation."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's folder; a tenant's name can have any characters."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def _complete(path: Path) -> bool:
    """Whether the path belongs to a file that clients can see."""
    return path.suffix == ".json" or (path.suffix == ".data" and path.with_suffix(".json").exists())


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The stored data of a file besides its content. Times in Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """Ignores fields of other builds. Raises TypeError if a field is missing."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    def body(self) -> dict[str, Any]:
        """OpenAI's file object."""
        body = asdict(self) | {"object": "file", "status": "processed"}
        return {name: value for name, value in body.items() if value is not None}


class FileStore:
    """`root`: one folder for all gateways, on shared storage if they run on several nodes."""

    def __init__(self, root: Path, max_file_bytes: int, max_tenant_bytes: int) -> None:
        self.root = root
        self.max_file_bytes = max_file_bytes
        self._max_tenant_bytes = max_tenant_bytes

    def folder(self, tenant: str) -> Path:
        folder = self.root / tenant_folder(tenant) / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check_room(self, tenant: str, size: int) -> None:
        """Raises ApiError if the tenant has no room for `size` more bytes. Removes expired files and incomplete files
        of killed processes."""
        folder, used, now = self.folder(tenant), 0, time.time()
        for stored in self._all(folder):
            if stored.expires_at is not None and stored.expires_at <= now:
                self._remove(folder, stored.id)
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue
                if stat.st_mtime < now - STALE and not _complete(Path(entry.path)):
                    Path(entry.path).unlink(missing_ok=True)
                else:
                    used += stat.st_size
        used += self._batch_inputs(tenant)
        if used + size > self._max_tenant_bytes:
            text = (
                f"The files take {used} bytes and {size} more were sent; this server keeps {self._max_tenant_bytes} "
                "bytes for each tenant. Delete some first."
            )
            raise ApiError(Kind.FILES_FULL, text, "file")

    def _batch_inputs(self, tenant: str) -> int:
        """Bytes of deleted files that are still on the disk as inputs of unfinished batches."""
        markers = self.root / "open"
        kept = 0
        for marker in markers.iterdir() if markers.is_dir() else ():
            with contextlib.suppress(OSError):  # the batch has ended meanwhile
                if marker.read_text() == tenant_folder(tenant):
                    stat = (self.root / tenant_folder(tenant) / "batches" / marker.name / "input").stat()
                    kept += stat.st_size if stat.st_nlink == 1 else 0
        return kept

    def add(self, tenant: str, file: StoredFile, content: Path) -> None:
        """Add `file` with the content at `content`, which is durable and in the tenant's folder."""
        folder = self.folder(tenant)
        content.replace(folder / f"{file.id}.data")
        try:
            disk.replace(folder / f"{file.id}.json", orjson.dumps(asdict(file)))
        except BaseException:  # otherwise the content could not be seen or deleted
            self._remove(folder, file.id)
            raise

    def get(self, tenant: str, id: str) -> StoredFile:
        file = self._read(self.folder(tenant) / f"{id}.json") if _ID.fullmatch(id) else None
        if file is None or (file.expires_at is not None and file.expires_at <= time.time()):
            raise ApiError(Kind.NO_SUCH_OBJECT, f"There is no file '{id[:100]}'.", "id")
        return file

    def content(self, tenant: str, id: str) -> Path:
        """The path of the content of an existing file."""
        return self.folder(tenant) / f"{id}.data"

    def all(self, tenant: str, purpose: str | None, newest_first: bool) -> Sequence[StoredFile]:
        files, now = self._all(self.folder(tenant)), time.time()
        living = [f for f in files if f.expires_at is None or f.expires_at > now]
        chosen = [f for f in living if purpose in (None, f.purpose)]
        return chosen[::-1] if newest_first else chosen

    def delete(self, tenant: str, id: str) -> None:
        """A batch that reads the file continues: it has its own link to the content."""
        self.get(tenant, id)
        self._remove(self.folder(tenant), id)

    def discard(self, tenant: str, id: str) -> None:
        """Delete a file that may not exist."""
        self._remove(self.folder(tenant), id)

    def _all(self, folder: Path) -> list[StoredFile]:
        names = sorted(name for name in os.listdir(folder) if name.startswith("file-") and name.endswith(".json"))
        return [file for name in names if (file := self._read(folder / name)) is not None]

    @staticmethod
    def _read(path: Path) -> StoredFile | None:
        """None if the file does not exist or this build cannot read it: the other files can still be listed."""
        try:
            return StoredFile.of(orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            log.warning("%s cannot be read: %s", path, error)
            return None

    @staticmethod
    def _remove(folder: Path, id: str) -> None:
        (folder / f"{id}.json").unlink(missing_ok=True)
        (folder / f"{id}.data").unlink(missing_ok=True)
