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
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import orjson

from gateway.errors import ApiError, Kind
from gateway.files import disk
from gateway.schemas.batches import Expiry, FileObject, FilePurpose
from services.settings.constants import Constants

STALE = 86_400.0  # seconds after which an incomplete file is that of a killed process
MAX_FILES = 4096  # per tenant: each upload and list iterates over all of them, in some hundredths of a second
CACHED_RECORDS = 1 << 15  # in memory, over all tenants: about 20 MB
log = logging.getLogger(__name__)
_ID = re.compile(r"file-[0-9a-f]{32}")


def new_id() -> str:
    """32 hexadecimal digits that begin with the time, so that ids sort by creation."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's folder; a tenant's name can have any characters."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The stored data of a file besides its content. Times in Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: FilePurpose
    expires_at: int | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """Ignores fields of other builds. Raises TypeError if a field is missing."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def body(self) -> FileObject:
        """OpenAI's file object."""
        expiry: Expiry = {} if self.expires_at is None else {"expires_at": self.expires_at}
        return {
            "id": self.id,
            "bytes": self.bytes,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            **expiry,
            "object": "file",
            "status": "processed",
        }


class FileStore:
    """The files of all tenants. `root`: one folder for all gateways, on shared storage if they run on several nodes."""

    def __init__(self, root: Path, constants: Constants) -> None:
        self.root = root
        self.max_file_bytes = constants.max_file_bytes
        self._max_tenant_bytes = constants.max_tenant_bytes

    def folder(self, tenant: str) -> Path:
        folder = self.root / tenant_folder(tenant) / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check_room(self, tenant: str, size: int) -> None:
        """Raises ApiError if the tenant has no room for one more file of `size` bytes. Removes expired files and
        incomplete files of killed processes."""
        folder, now = self.folder(tenant), time.time()
        files = {file.id: file for file in self._all(folder)}
        for id in [id for id, file in files.items() if file.expired(now)]:
            self._remove(folder, id)
            del files[id]
        _check_count(len(files))
        used = sum(file.bytes for file in files.values()) + _others(folder, files.keys(), now)
        used += self._batch_inputs(tenant)
        if used + size > self._max_tenant_bytes:
            text = (
                f"The files take {used} bytes and {size} more were sent; this server keeps {self._max_tenant_bytes} "
                "bytes for each tenant. Delete some first."
            )
            raise ApiError(Kind.FILES_FULL, text, "file")

    def check_count(self, tenant: str) -> None:
        """Raises ApiError if the tenant has the maximum number of files."""
        _check_count(len(self._all(self.folder(tenant))))

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
        file = _record(self.folder(tenant) / f"{id}.json") if _ID.fullmatch(id) else None
        if file is None or file.expired(time.time()):
            raise ApiError(Kind.NO_SUCH_OBJECT, f"There is no file '{id[:100]}'.", "id")
        return file

    def content(self, tenant: str, id: str) -> Path:
        """The path of the content of an existing file."""
        return self.folder(tenant) / f"{id}.data"

    def all(self, tenant: str, purpose: str | None, newest_first: bool) -> Sequence[StoredFile]:
        files, now = self._all(self.folder(tenant)), time.time()
        chosen = [f for f in files if not f.expired(now) and purpose in (None, f.purpose)]
        return chosen[::-1] if newest_first else chosen

    def delete(self, tenant: str, id: str) -> None:
        """A batch that reads the file continues: it has its own link to the content."""
        self.get(tenant, id)
        self._remove(self.folder(tenant), id)

    def discard(self, tenant: str, id: str) -> None:
        """Delete a file that may not exist."""
        self._remove(self.folder(tenant), id)

    def _all(self, folder: Path) -> list[StoredFile]:
        """In the order of creation. A record never changes, so it is read from the disk once."""
        with os.scandir(folder) as entries:
            found = sorted(
                (e.name, e.inode()) for e in entries if e.name.startswith("file-") and e.name.endswith(".json")
            )
        return [file for name, inode in found if (file := _record(folder / name, inode)) is not None]

    @staticmethod
    def _remove(folder: Path, id: str) -> None:
        (folder / f"{id}.json").unlink(missing_ok=True)
        (folder / f"{id}.data").unlink(missing_ok=True)


def _record(path: Path, inode: int | None = None) -> StoredFile | None:
    """None if the file does not exist or this build cannot read it: the other files can still be listed. `inode`: that
    of the record in its folder, for the cache."""
    try:
        return _read(path) if inode is None else _cached(str(path), inode)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def _read(path: Path) -> StoredFile:
    return StoredFile.of(orjson.loads(path.read_bytes()))


@lru_cache(CACHED_RECORDS)
def _cached(path: str, inode: int) -> StoredFile:
    return _read(Path(path))


def _check_count(files: int) -> None:
    if files >= MAX_FILES:
        text = f"You have {files} files; this server keeps {MAX_FILES} for each tenant. Delete some first."
        raise ApiError(Kind.FILES_FULL, text, "file")


def _others(folder: Path, known: Set[str], now: float) -> int:
    """Bytes of files that are not `known`. Removes those that are old and have no record."""
    used = 0
    with os.scandir(folder) as scanned:
        entries = {entry.name: entry for entry in scanned if entry.name.partition(".")[0] not in known}
    for name, entry in entries.items():
        with contextlib.suppress(FileNotFoundError):
            stat, id = entry.stat(), name.partition(".")[0]
            if stat.st_mtime >= now - STALE or (id and f"{id}.json" in entries):
                used += stat.st_size
            else:
                Path(entry.path).unlink()
    return used
