"""Waiting for the end of processes that need not be children of this one (Linux)."""

from __future__ import annotations

import asyncio
import errno
import os

NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)  # the last two: the id is a thread's, on older and newer kernels


async def until_ended(pid: int | None) -> None:
    """Wait until the process has ended, without polling; return at once if there is none, or if `pid` is None or 0."""
    if not pid:
        return
    try:
        number = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in NO_PROCESS:
            return
        raise
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(number, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(number)
        os.close(number)
