"""Users: who uses the pool server of a data folder, so that nobody stops or changes it under another.

A user holds a shared lock on an open file. It ends with the process, or with the last of its children that inherited
the file: whoever was killed is no user any more.
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

POLL = 0.05  # seconds between tries


class Users:
    """The users of `folder`, and this one's place among them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place: IO[str] | None = None

    @contextlib.asynccontextmanager
    async def changing(self, timeout: float) -> AsyncIterator[None]:
        """One start or stop at a time; raises PoolUnavailable when another one takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._open("users.change") as change:
            while not take(change):
                if time.monotonic() > deadline:
                    raise PoolUnavailable(f"somebody else starts or stops the server on {self._folder}")
                await asyncio.sleep(POLL)
            yield

    def join(self) -> int:
        """Become a user, within `changing`. Returns the file to inherit for a child that goes on alone."""
        if self._place is None:
            self._place = self._open("users")
            fcntl.flock(self._place, fcntl.LOCK_SH)
        return self._place.fileno()

    def alone(self) -> bool:
        """Whether nobody else is a user, within `changing`."""
        assert self._place is not None, "only a user may ask"
        alone = take(self._place)
        fcntl.flock(self._place, fcntl.LOCK_SH)  # the try let go of it
        return alone

    def leave(self) -> None:
        """Be a user no more."""
        if self._place is not None:
            self._place.close()
            self._place = None

    def _open(self, name: str) -> IO[str]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return open(self._folder / name, "w")


def take(lock: IO[str]) -> bool:
    """Take the lock, for as long as the file is open, unless it is held."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
