"""Waiting for the end of a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from services.processes import until_ended


def _start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)


async def test_waits_until_a_process_ends_that_nobody_has_reaped() -> None:
    process = _start("input()")
    waiting = asyncio.create_task(until_ended(process.pid))
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    process.kill()
    await asyncio.wait_for(waiting, 10)
    assert process.wait() != 0


async def test_returns_at_once_without_a_process() -> None:
    process = _start("")
    process.wait()
    for pid in (None, 0, process.pid):
        await asyncio.wait_for(until_ended(pid), 10)


async def test_the_id_of_a_thread_is_no_process() -> None:
    """A process id from another container may be one here."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        await asyncio.wait_for(until_ended(thread.native_id), 10)
    finally:
        end.set()
        thread.join()
