"""Background tasks and threads: exceptions are logged, tasks run again, processes end with their vital threads."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading

import pytest

from services import background
from services.background import (
    LOOK,
    LOWEST,
    QUIET,
    QUIET_WITHIN,
    at_low_priority,
    daemon_thread,
    in_daemon_thread,
    keep_running,
    quiet_moment,
    start,
)
from services.loop.clock import run_in_virtual_time


async def test_a_failed_function_runs_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE", 0.0)
    times = 0

    async def part() -> None:
        nonlocal times
        times += 1
        if times < 3:
            raise OSError(f"fault {times}")

    await keep_running(part)
    assert times == 3
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["fault 1", "fault 2"]


async def test_an_exception_that_ends_a_task_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise KeyError("a fault")

    task = start(work(), "the work")
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "the work ended by a fault"
    ]


async def test_a_task_without_references_continues() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.set()

    start(work(), "the work")
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.wait_for(done.wait(), 20)


def test_a_process_ends_with_its_vital_thread() -> None:
    program = (
        "import time\n"
        "from services.background import start_thread\n"
        "def work():\n    raise OSError('no more files')\n"
        "start_thread(work, 'lifeline')\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert ended.returncode == background.STATUS
    assert "the thread lifeline failed" in ended.stderr
    assert "no more files" in ended.stderr


async def test_a_daemon_thread_passes_on_result_and_exception() -> None:
    assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(divmod, 7, 0)


def test_a_process_ends_while_a_daemon_thread_runs() -> None:
    program = (
        "import asyncio, time\n"
        "from services.background import in_daemon_thread\n"
        "async def main():\n"
        "    task = asyncio.create_task(in_daemon_thread(time.sleep, 3600))\n"
        "    await asyncio.sleep(0)\n"
        "    task.cancel()\n"
        "    await asyncio.wait({task})\n"
        "    print(task.cancelled())\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_thread_of_low_priority_leaves_none_to_the_process() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    assert at_low_priority(priority) == LOWEST
    assert priority() == daemon_thread(priority).result(10) == before


def test_what_fails_at_low_priority_fails_for_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)


@pytest.mark.parametrize(("busy_for", "returns"), [(0.0, QUIET), (3.0, 3.0 + QUIET), (1000.0, QUIET_WITHIN)])
def test_a_quiet_moment_is_waited_for_within_a_bound(busy_for: float, returns: float) -> None:
    async def wait() -> None:
        now = asyncio.get_running_loop().time

        async def busy() -> bool:
            return now() < busy_for

        await quiet_moment(busy)
        assert now() == pytest.approx(returns, abs=2 * LOOK)

    run_in_virtual_time(wait())
