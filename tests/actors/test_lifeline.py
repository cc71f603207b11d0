"""Deaths of real processes, seen through their lifelines."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.lifeline import Lifeline, watch

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"
CHILD = f"""
import time
from actors.lifeline import Lifeline
print(Lifeline("{HERE}").address, flush=True)
time.sleep(600)
"""


class Child:
    """A process with a lifeline, and `files`, the number of files it has open."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CHILD]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.process.kill()
    child.process.wait()


async def settled(child: Child, files: int) -> None:
    """Wait until the child has so many files open."""
    async with asyncio.timeout(30):
        while child.files() != files:  # noqa: ASYNC110  another process: nothing here says when
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_death_ends_every_watch(child: Child, number: signal.Signals) -> None:
    files = child.files()
    watches = [asyncio.create_task(watch(child.address, HERE)) for _ in range(3)]
    await settled(child, files + 3)
    assert not any(each.done() for each in watches)
    child.process.send_signal(number)
    await asyncio.wait_for(asyncio.gather(*watches), 30)


async def test_a_stopped_process_is_not_dead(child: Child) -> None:
    files = child.files()
    early = asyncio.create_task(watch(child.address, HERE))
    await settled(child, files + 1)
    child.process.send_signal(signal.SIGSTOP)
    late = asyncio.create_task(watch(child.address, HERE))
    done, _ = await asyncio.wait({early, late}, timeout=5)  # longer than an unanswered node would be given
    assert not done
    child.process.kill()
    await asyncio.wait_for(asyncio.gather(early, late), 30)


async def test_a_process_that_is_gone_is_dead_on_its_own_node_and_unknown_from_another(child: Child) -> None:
    child.process.kill()
    child.process.wait()
    await asyncio.wait_for(watch(child.address, HERE), 30)
    elsewhere = asyncio.create_task(watch(child.address, "192.0.2.1"))
    done, _ = await asyncio.wait({elsewhere}, timeout=0.5)
    assert not done
    elsewhere.cancel()


async def test_watchers_that_go_leave_nothing_open(child: Child) -> None:
    files = child.files()
    for _ in range(20):
        watches = [asyncio.create_task(watch(child.address, HERE)) for _ in range(10)]
        await settled(child, files + 10)
        for each in watches:
            each.cancel()
        await asyncio.wait(watches)
        await settled(child, files)


def test_each_lifeline_has_an_address_of_its_own() -> None:
    first, second = Lifeline(HERE), Lifeline(HERE)
    assert first.address != second.address
    assert first.address.startswith(HERE + ":")
