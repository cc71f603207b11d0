"""Atomic and durable writes: a file exists with its whole content or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from services.files import sync

P = ParamSpec("P")
T = TypeVar("T")

# Threads apart from the loop's default ones, which a slow disk must not block.
_threads = ThreadPoolExecutor(8, "disk")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `function`, which uses the disk."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args, **kwargs))


def temporary(path: Path) -> Path:
    """A name beside `path` for a file that is renamed to `path` when it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def replace(path: Path, data: bytes, durable: bool = True) -> None:
    """Write `data` to `path`, replacing its content. `durable`: the file survives a power failure."""
    written = _write(path, data, durable)
    written.replace(path)
    if durable:
        sync(path.parent)


def create(path: Path, data: bytes) -> bool:
    """Write `data` to a new file, durably. Returns False if the file exists; of concurrent calls one succeeds."""
    written = _write(path, data, durable=True)
    try:
        os.link(written, path)
    except FileExistsError:
        return False
    finally:
        written.unlink()
    sync(path.parent)
    return True


def _write(path: Path, data: bytes, durable: bool) -> Path:
    written = temporary(path)
    try:
        with written.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:  # the disk may be full: do not leave the file there
        written.unlink(missing_ok=True)
        raise
    return written
