"""Writing to disk so that what was acknowledged survives: whole under its name, or not there at all."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Their own: a slow disk must not hold up prompts that are tokenized in the loop's threads.
_threads = ThreadPoolExecutor(8, "disk")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `function`, which uses the disk."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args, **kwargs))


def temporary(path: Path) -> Path:
    """A name beside `path` for what is to get that name when it is whole."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def replace(path: Path, data: bytes, durable: bool = True) -> None:
    """`data` under this name, in place of what was there. `durable`: also after a loss of power."""
    written = _write(path, data, durable)
    written.replace(path)
    if durable:
        sync_folder(path.parent)


def create(path: Path, data: bytes) -> bool:
    """`data` under this name, durable; False and nothing done where the name is taken. One of several wins."""
    written = _write(path, data, durable=True)
    try:
        os.link(written, path)
    except FileExistsError:
        return False
    finally:
        written.unlink()
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write(path: Path, data: bytes, durable: bool) -> Path:
    written = temporary(path)
    try:
        with written.open("xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:  # the disk is full: what is left would keep it so
        written.unlink(missing_ok=True)
        raise
    return written
