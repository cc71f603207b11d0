"""Work in the background whose end is not missed.

A task that its function does not await, or a thread, is begun by one of these three: it begins anew after a fault, or
its fault is logged, or the process ends with it, and whoever looks after processes starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

PAUSE = 0.5  # seconds before what failed begins anew
STATUS = 70  # of a process whose vital thread failed: EX_SOFTWARE

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps no task alive


async def persist(part: Callable[[], Awaitable[None]]) -> None:
    """Run `part` until it returns. A fault in it is logged, and it begins anew."""
    while True:
        try:
            await part()
            return
        except Exception:
            log.exception("%s failed; it begins anew", getattr(part, "__qualname__", part))
            await asyncio.sleep(PAUSE)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that lives until it ends, whoever holds it. A fault that ends it is logged at once."""
    task = asyncio.create_task(work, name=name)
    _tasks.add(task)
    task.add_done_callback(_ended)
    return task


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """A thread without which the process is of no use: a fault in it is logged and ends the process."""

    def run() -> None:
        try:
            work()
        except BaseException:
            log.critical("the thread %s failed, and the process ends with it", name, exc_info=True)
            logging.shutdown()
            os._exit(STATUS)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _ended(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        log.error("%s ended by a fault", task.get_name(), exc_info=error)
