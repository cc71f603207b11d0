"""What runs in the background ends with a word in the log, begins anew, or takes its process with it."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys

import pytest

from services import background
from services.background import keep_running, start


async def test_a_part_that_fails_begins_anew(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_task_that_ends_by_a_fault_is_in_the_log_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise KeyError("a fault")

    task = start(work(), "the work")
    await asyncio.wait({task})
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "the work ended by a fault"
    ]


async def test_a_task_that_nobody_holds_goes_on() -> None:
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
