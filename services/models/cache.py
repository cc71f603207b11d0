"""The model cache: `<cache>/models/<key>/<model name>`, complete or absent, made once even by many processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from services.errors import ModelError

Progress = Callable[[str], None]

# Part of every key: raise it when the converter writes something else than before.
FORMAT = 1


def place(cache_dir: Path, identity: str, name: str) -> Path:
    """Where the model of this name and source identity belongs; its last part is the name."""
    key = hashlib.sha256(f"{FORMAT}\n{identity}".encode()).hexdigest()[:16]
    return cache_dir / "models" / key / name


def cached(folder: Path, build: Callable[[Path, Path], None], progress: Progress) -> Path:
    """`folder`, a `place`; made first by `build(folder to write, folder for its leavings)` if it is not there.

    One process builds while others wait; what is half built is never seen.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, progress):
            if not folder.is_dir():
                _build(folder, build)
    except OSError as error:
        raise ModelError(f"the model cache cannot be written: {error}") from error
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
    for leftover in folder.parent.glob("building-*"):  # its process died: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        target, scratch = staging / "model", staging / "scratch"
        scratch.mkdir()
        build(target, scratch)
        os.sync()  # a name must not outlive its contents when the machine stops
        target.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
