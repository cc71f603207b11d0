"""FileStore: the files of each tenant, a folder for each: `<id>.data`, and `<id>.json` once the file is whole.

All methods but `body` block; call them in a thread.
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

STALE = 86_400.0  # seconds after which a file that is not whole is what a killed process left
MOST_FILES = 4096  # of a tenant: each upload and each list goes through all of them, in some hundredths of a second
KEPT_RECORDS = 1 << 15  # in memory, of all tenants: 20 MB or so
log = logging.getLogger(__name__)
_ID = re.compile(r"file-[0-9a-f]{32}")


def new_id() -> str:
    """32 hexadecimal digits: the time first, so that ids sort by creation."""
    return f"{time.time_ns() // 1000:014x}{secrets.token_hex(9)}"


def tenant_folder(tenant: str) -> str:
    """The name of a tenant's folder; tenants have any names."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is kept of a file besides its content. Times in Unix seconds."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """What another build added is left out. Raises TypeError where something is missing."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def body(self) -> dict[str, Any]:
        """OpenAI's file object."""
        body = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return body | {"object": "file", "status": "processed"}


class FileStore:
    """`root` is one folder for all gateways: on several nodes shared storage. Raises ApiError for users' mistakes."""

    def __init__(self, root: Path, max_file_bytes: int, max_tenant_bytes: int) -> None:
        self.root = root
        self.max_file_bytes = max_file_bytes
        self._max_tenant_bytes = max_tenant_bytes

    def folder(self, tenant: str) -> Path:
        folder = self.root / tenant_folder(tenant) / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check_room(self, tenant: str, size: int) -> None:
        """Raises ApiError where the tenant has no room for one more file of so many bytes. Removes what has
        expired, and what processes left that were killed while they wrote it."""
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
        """Raises ApiError where the tenant has as many files as it may have."""
        _check_count(len(self._all(self.folder(tenant))))

    def _batch_inputs(self, tenant: str) -> int:
        """Bytes of files that were deleted, and are on the disk as inputs of batches that have not ended."""
        markers = self.root / "open"
        kept = 0
        for marker in markers.iterdir() if markers.is_dir() else ():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if marker.read_text() == tenant_folder(tenant):
                    stat = (self.root / tenant_folder(tenant) / "batches" / marker.name / "input").stat()
                    kept += stat.st_size if stat.st_nlink == 1 else 0
        return kept

    def add(self, tenant: str, file: StoredFile, content: Path) -> None:
        """Let `content`, which is durable and in the tenant's folder, be the content of `file`."""
        folder = self.folder(tenant)
        content.replace(folder / f"{file.id}.data")
        try:
            disk.replace(folder / f"{file.id}.json", orjson.dumps(asdict(file)))
        except BaseException:  # nobody could see or delete the content
            self._remove(folder, file.id)
            raise

    def get(self, tenant: str, id: str) -> StoredFile:
        file = _readable(self.folder(tenant) / f"{id}.json") if _ID.fullmatch(id) else None
        if file is None or file.expired(time.time()):
            raise ApiError(Kind.NO_SUCH_OBJECT, f"There is no file '{id[:100]}'.", "id")
        return file

    def content(self, tenant: str, id: str) -> Path:
        """Where the content of a file is, which exists."""
        return self.folder(tenant) / f"{id}.data"

    def all(self, tenant: str, purpose: str | None, newest_first: bool) -> Sequence[StoredFile]:
        files, now = self._all(self.folder(tenant)), time.time()
        chosen = [f for f in files if not f.expired(now) and purpose in (None, f.purpose)]
        return chosen[::-1] if newest_first else chosen

    def delete(self, tenant: str, id: str) -> None:
        """A batch that reads the file goes on: it has a link of its own."""
        self.get(tenant, id)
        self._remove(self.folder(tenant), id)

    def discard(self, tenant: str, id: str) -> None:
        """Delete a file that may not be there."""
        self._remove(self.folder(tenant), id)

    def _all(self, folder: Path) -> list[StoredFile]:
        """By creation. Each record is read from the disk once: it never changes."""
        with os.scandir(folder) as entries:
            found = sorted(
                (e.name, e.inode()) for e in entries if e.name.startswith("file-") and e.name.endswith(".json")
            )
        return [file for name, inode in found if (file := _readable(folder / name, inode)) is not None]

    @staticmethod
    def _remove(folder: Path, id: str) -> None:
        (folder / f"{id}.json").unlink(missing_ok=True)
        (folder / f"{id}.data").unlink(missing_ok=True)


def _readable(path: Path, inode: int | None = None) -> StoredFile | None:
    """None where there is none, or none that this build can read: the tenant's others are well. With the `inode` that
    it has in its folder, what was read before is taken."""
    try:
        return _read(path) if inode is None else _kept(str(path), inode)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        log.warning("%s is no file's record that can be read: %s", path, error)
        return None


def _read(path: Path) -> StoredFile:
    return StoredFile.of(orjson.loads(path.read_bytes()))


@lru_cache(KEPT_RECORDS)
def _kept(path: str, inode: int) -> StoredFile:
    return _read(Path(path))


def _check_count(files: int) -> None:
    if files >= MOST_FILES:
        text = f"You have {files} files; this server keeps {MOST_FILES} for each tenant. Delete some first."
        raise ApiError(Kind.FILES_FULL, text, "file")


def _others(folder: Path, known: Set[str], now: float) -> int:
    """Bytes of what belongs to none of the `known` files. What is old of it and has no record is removed."""
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
