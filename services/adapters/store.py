"""The content of adapters, in the files folder that gateways and engines share.

An adapter's folder is named by its digest. It appears there complete or not at all, and never changes. Whoever loads an
adapter holds the lock of the folder in common with others, until its name is registered; whoever removes some holds it
alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from services.adapters.peft import CONFIG, PICKLES, WEIGHTS
from services.files import sync

STALE = 86_400.0  # seconds after which a draft is that of a killed process
PART = 1 << 20  # bytes that are copied at once
MOST_CONFIG = 1 << 20  # bytes of a config: parsing it stops all else that a gateway does
_DRAFT = ".draft-"


def folder_of(files: Path, digest: str) -> Path:
    """Return the folder of the adapter with this digest (sha256, hexadecimal), below the files folder."""
    return files / "adapters" / digest


def registry_of(files: Path, pool: str) -> Path:
    """Return the file that has the registry of the pool of this name, for the day on which the pool has lost it."""
    return files / "adapters" / f"{hashlib.sha256(pool.encode()).hexdigest()[:16]}.registry"


@contextlib.contextmanager
def locked(files: Path, alone: bool = False) -> Iterator[None]:
    """Hold the lock of the adapters' folder. Raises BlockingIOError if it cannot be held at once."""
    folder = files / "adapters"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


def draft_of(source: Path, files: Path, model: str, most: int, below: Path | None = None) -> tuple[Path, str]:
    """Return a copy of the adapter in `source`, and its digest: that of `model`, which names the pool and the
    revision of the model, and of its content. The caller keeps or discards the copy.

    What is missing is missing in the copy. Raises OSError, and ValueError with a sentence for a file that is none, or
    more than `most` bytes of all, a config of more than MOST_CONFIG, or a link that leads out of `below`.
    """
    draft = files / "adapters" / f"{_DRAFT}{secrets.token_hex(8)}"
    draft.mkdir(parents=True)
    try:
        digest, left = hashlib.sha256(model.encode()), most
        for name in (CONFIG, WEIGHTS):
            with contextlib.suppress(FileNotFoundError):
                most = min(left, MOST_CONFIG) if name == CONFIG else left
                left -= _copy(source / name, draft / name, most, below)
                with (draft / name).open("rb") as copied:
                    digest.update(name.encode() + hashlib.file_digest(copied, "sha256").digest())
        for name in PICKLES:  # the check says what they are
            if (source / name).exists():
                (draft / name).touch()
    except BaseException:
        discard(draft)
        raise
    return draft, digest.hexdigest()


def keep(draft: Path, files: Path, digest: str) -> None:
    """Make `draft` the folder of this digest, durably, unless it is there. Raises OSError."""
    folder = folder_of(files, digest)
    for name in PICKLES:
        (draft / name).unlink(missing_ok=True)
    sync(draft)
    try:
        draft.rename(folder)
    except OSError:  # it is there
        if not folder.exists():
            raise
    sync(folder.parent)


def discard(draft: Path) -> None:
    """Remove what `keep` has not taken."""
    shutil.rmtree(draft, ignore_errors=True)


def remove(files: Path, digest: str) -> None:
    """Remove the adapter with this digest, if it is there. Raises OSError."""
    gone = files / "adapters" / f"{_DRAFT}{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        folder_of(files, digest).rename(gone)
        shutil.rmtree(gone)


def remove_stale(files: Path, seconds: float = STALE) -> None:
    """Remove the drafts of killed processes."""
    for draft in (files / "adapters").glob(f"{_DRAFT}*"):
        with contextlib.suppress(FileNotFoundError):
            if draft.stat().st_mtime <= time.time() - seconds:
                discard(draft)


def _copy(source: Path, target: Path, most: int, below: Path | None) -> int:
    """Copy a file durably. Returns its bytes."""
    with open(source, "rb", opener=_open) as read, target.open("xb") as written:
        number = read.fileno()
        real = Path(os.readlink(f"/proc/self/fd/{number}"))  # of the open file, which no link can change any more
        if below is not None and not real.is_relative_to(below):
            raise ValueError(f"{source.name} is a link that leads out of {below}")
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError(f"{source.name} is no file")
        size = 0
        while part := read.read(PART):
            size += len(part)
            if size > most:
                raise ValueError(f"{source.name} is too large: {most} bytes are left for it")
            written.write(part)
        written.flush()
        os.fsync(written.fileno())
    return size


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would block
