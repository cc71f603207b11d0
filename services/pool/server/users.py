"""Users: which processes use the pool server of a data folder, so that none stops or changes it while others use it.

A user holds a shared lock on an open file. The lock ends with the process, or with the last child that inherited the
file, so that a killed process is no user.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from services.errors import PoolUnavailable

POLL = 0.05  # seconds between attempts to take a lock


class Users:
    """The users of the server on `folder`, of which this object may be one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None  # locked while this object is a user

    @contextlib.asynccontextmanager
    async def changing(self, timeout: float) -> AsyncIterator[None]:
        """Exclude other starts and stops. Raises PoolUnavailable if another one takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._open("users.change") as change:
            while not try_lock(change):
                if time.monotonic() > deadline:
                    raise PoolUnavailable(f"another process starts or stops the server on {self._folder}")
                await asyncio.sleep(POLL)
            yield

    def join(self) -> int:
        """Become a user; call it within `changing`.

        Returns the file descriptor that a child process inherits to remain a user by itself.
        """
        if self._file is None:
            self._file = self._open("users")
            fcntl.flock(self._file, fcntl.LOCK_SH)
        return self._file.fileno()

    def alone(self) -> bool:
        """Whether there is no other user; call it within `changing`."""
        assert self._file is not None, "only a user may ask"
        alone = try_lock(self._file)
        fcntl.flock(self._file, fcntl.LOCK_SH)  # the attempt released the shared lock
        return alone

    def leave(self) -> None:
        """Cease to be a user."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, name: str) -> IO[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return open(self._folder / name, "w")


def in_use(folder: Path) -> bool:
    """Whether the server on `folder` has a user."""
    try:
        with open(folder / "users") as file:
            return not try_lock(file)
    except FileNotFoundError:
        return False


def try_lock(file: IO[str]) -> bool:
    """Lock the file exclusively until it is closed. Returns False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
