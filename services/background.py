"""Background tasks and threads whose exceptions are not lost.

A task that is not awaited, and every thread, is started by one of these functions: after an exception it runs again, or
the exception is logged, or the process ends, so that whatever supervises the process starts another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

PAUSE = 0.5  # seconds before a function that failed runs again
LOWEST = 19  # the lowest priority of a thread
LOOK = 0.1  # seconds between looks whether a server is quiet
QUIET = 1.0  # seconds for which it has to be
QUIET_WITHIN = 15.0  # seconds after which nobody waits for that any longer
STATUS = 70  # exit status after a vital thread failed (EX_SOFTWARE)

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()  # the event loop holds only weak references to tasks


async def keep_running(part: Callable[[], Awaitable[None]]) -> None:
    """Run `part` until it returns. If it raises an exception, log it and run `part` again."""
    while True:
        try:
            await part()
            return
        except Exception:
            log.exception("%s failed; it is started again", getattr(part, "__qualname__", part))
            await asyncio.sleep(PAUSE)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that runs to its end even if nothing refers to it. An exception that ends it is logged at once."""
    task = asyncio.create_task(work, name=name)
    _tasks.add(task)
    task.add_done_callback(_ended)
    return task


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread without which the process is useless: an exception in it is logged and ends the process."""

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


def daemon_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Start `work` in a thread for which the end of the process does not wait."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()  # so that it takes a result even if nobody waits for that any more
    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    return future


def at_low_priority(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which runs in a thread that gets a processor when no other thread wants it.

    On Linux each thread has a priority of its own. Without privileges it can be lowered and not raised again, but it
    ends with the thread. Threads that `work` starts keep the low priority.
    """

    def run() -> T:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)
        return work(*args, **kwargs)

    return daemon_thread(run).result()


async def quiet_moment(busy: Callable[[], Awaitable[bool]]) -> None:
    """Return when `busy` has been false for `QUIET` seconds, but after `QUIET_WITHIN` seconds at the latest: then what
    takes processors and is not needed at once may start."""
    quiet, looks = 0, 0
    while quiet * LOOK < QUIET and looks * LOOK < QUIET_WITHIN:
        await asyncio.sleep(LOOK)
        looks += 1
        quiet = 0 if await busy() else quiet + 1


async def in_daemon_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which runs in a thread. If the caller is cancelled, the thread goes on, but the end of the
    process does not wait for it, as it would with `asyncio.to_thread`: for a download, that is long."""
    return await asyncio.wrap_future(daemon_thread(work, *args, **kwargs))


def _ended(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        log.error("%s ended by a fault", task.get_name(), exc_info=error)
