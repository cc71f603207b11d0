"""The model cache: folders `<cache>/models/<key>/<model name>`, complete or absent, each built by one process."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from services.errors import ModelError
from services.files import sync

Progress = Callable[[str], None]

# Part of every key. It has to be increased when the converter's output changes.
FORMAT = 6


def place(cache_dir: Path, identity: str, name: str) -> Path:
    """Return the folder of the model with this name and source identity. The last part of the path is the name."""
    key = hashlib.sha256(f"{FORMAT}\n{identity}".encode()).hexdigest()[:16]
    return cache_dir / "models" / key / name


def cached(folder: Path, build: Callable[[Path, Path], None], progress: Progress) -> Path:
    """Return `folder`, which is a `place`. If it does not exist, `build(target folder, scratch folder)` creates it.

    One process builds while others wait. An incomplete folder is never visible. Raises ModelError if the cache cannot
    be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            if not folder.is_dir():
                _build(folder, build)
    except OSError as error:
        raise ModelError(f"cache_dir: the model cache cannot be written: {error}; name a folder that can be") from error
    return folder


def _locked(folder: Path, progress: Progress) -> FileLock:
    lock = FileLock(folder.parent / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that prepares {folder.name}")
        lock.acquire()
    return lock


def _build(folder: Path, build: Callable[[Path, Path], None]) -> None:
    for leftover in folder.parent.glob("building-*"):  # of a process that died: this process holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        target, scratch = staging / "model", staging / "scratch"
        scratch.mkdir()
        build(target, scratch)
        for file in (*target.rglob("*"), target):  # the name must not be on disk before the contents
            if not file.is_symlink():
                sync(file)
        target.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
