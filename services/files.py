"""The folders of a user's files, and files that other processes see complete or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def says_disk_full(text: str) -> bool:
    """Whether the message of a program or a library says that a disk is full."""
    return any(os.strerror(number) in text for number in DISK_FULL)


def user_cache() -> Path:
    """Return the folder for files that can be made again (XDG_CACHE_HOME)."""
    return _folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    """Return the folder for files that must be kept (XDG_DATA_HOME)."""
    return _folder("XDG_DATA_HOME", ".local/share")


def absolute_folder(path: Path) -> Path:
    """Return the path with `~` replaced and independent of the working folder. Raises ValueError if there is none."""
    if "\0" in str(path):
        raise ValueError("a path has no NUL character")
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # no such user
        raise ValueError(str(error)) from None


def write_atomically(file: Path, data: bytes) -> None:
    """Write `data` to `file`, replacing what was there. The folder is created if necessary. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(file)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable. `os.sync` would wait for what other programs have
    written, too. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _folder(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "orca"
