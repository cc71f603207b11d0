"""Deaths of real processes, seen through their lifelines and their marks."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lifeline_process import HERE, LifelineProcess

from actors.liveness import LOOK, LOOKS, Lifeline, WeightsMark, is_marked, stopped, watch
from load.server import until

MARK_PROGRAM = """
import sys, time
from actors.liveness import WeightsMark
mark = WeightsMark(sys.argv[1])
mark.set()
print("set", flush=True)
time.sleep(600)
"""


async def settled(holder: LifelineProcess, sockets: int) -> None:
    """Wait until the process has that many sockets open."""
    await until(lambda: holder.sockets() == sockets, every=0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_death_ends_every_watch(holder: LifelineProcess, number: signal.Signals) -> None:
    sockets = holder.sockets()
    watches = [asyncio.create_task(watch(holder.address, HERE)) for _ in range(3)]
    await settled(holder, sockets + 3)
    assert not any(each.done() for each in watches)
    holder.process.send_signal(number)
    await asyncio.wait_for(asyncio.gather(*watches), 30)


async def test_a_stopped_process_is_not_dead(holder: LifelineProcess) -> None:
    sockets = holder.sockets()
    early = asyncio.create_task(watch(holder.address, HERE))
    await settled(holder, sockets + 1)
    holder.process.send_signal(signal.SIGSTOP)
    late = asyncio.create_task(watch(holder.address, HERE))
    done, _ = await asyncio.wait({early, late}, timeout=5)  # longer than the time after which a silent node is lost
    assert not done
    holder.kill()
    await asyncio.wait_for(asyncio.gather(early, late), 30)


async def test_a_process_that_is_gone_is_dead_on_its_own_node_and_unknown_from_another(holder: LifelineProcess) -> None:
    holder.kill()
    await asyncio.wait_for(watch(holder.address, HERE), 30)
    elsewhere = asyncio.create_task(watch(holder.address, "192.0.2.1"))
    done, _ = await asyncio.wait({elsewhere}, timeout=0.5)
    assert not done
    elsewhere.cancel()


async def test_watchers_that_go_leave_nothing_open(holder: LifelineProcess) -> None:
    sockets = holder.sockets()
    for _ in range(20):
        watches = [asyncio.create_task(watch(holder.address, HERE)) for _ in range(10)]
        await settled(holder, sockets + 10)
        for each in watches:
            each.cancel()
        await asyncio.wait(watches)
        await settled(holder, sockets)


async def test_a_watcher_that_cannot_open_a_connection_takes_no_process_for_dead(holder: LifelineProcess) -> None:
    sockets, limits = holder.sockets(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        watching = asyncio.create_task(watch(holder.address, HERE))
        await asyncio.wait({watching}, timeout=0.1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await settled(holder, sockets + 1)
    assert not watching.done()
    holder.kill()
    await asyncio.wait_for(watching, 30)


async def test_a_lifeline_counts_its_watchers() -> None:
    lifeline = Lifeline(HERE)
    assert lifeline.watchers == 0
    watches = [asyncio.create_task(watch(lifeline.address, HERE)) for _ in range(3)]
    await until_watched(lifeline, 3)
    watches.pop().cancel()
    await until_watched(lifeline, 2)
    for each in watches:
        each.cancel()


async def until_watched(lifeline: Lifeline, watchers: int) -> None:
    await until(lambda: lifeline.watchers == watchers, every=0.01)


def test_each_lifeline_has_an_address_of_its_own() -> None:
    first, second = Lifeline(HERE), Lifeline(HERE)
    assert first.address != second.address
    assert first.address.startswith(HERE + ":")


@pytest.fixture
def name(tmp_path: Path) -> str:
    return tmp_path.name


@pytest.fixture
def marked(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has set the mark `name`."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", MARK_PROGRAM, name], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "set"
    yield process
    process.kill()
    process.wait()


def test_a_mark_is_seen_until_it_is_cleared(name: str) -> None:
    mark = WeightsMark(name)
    assert not mark
    assert not is_marked(name)
    mark.set()
    assert mark
    assert is_marked(name)
    assert not is_marked(name + "-b")
    mark.clear()
    assert not mark
    assert not is_marked(name)


def test_a_mark_ends_with_its_process(marked: subprocess.Popen[str], name: str) -> None:
    assert is_marked(name)
    marked.kill()
    marked.wait()
    assert not is_marked(name)


def test_a_stopped_process_keeps_its_mark(marked: subprocess.Popen[str], name: str) -> None:
    marked.send_signal(signal.SIGSTOP)
    assert all(is_marked(name) for _ in range(1000))


def test_a_name_that_is_taken_costs_nothing_but_the_mark(marked: subprocess.Popen[str], name: str) -> None:
    second = WeightsMark(name)
    second.set()
    second.clear()
    assert is_marked(name)


async def test_a_process_that_is_stopped_is_found_among_those_that_work_and_sleep(
    make_holder: Callable[[], LifelineProcess],
) -> None:
    sleeping, halted = make_holder().process, make_holder().process
    working = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # noqa: ASYNC220
    try:
        looking = asyncio.create_task(stopped([sleeping.pid, working.pid, halted.pid]))
        for _ in range(2 * LOOKS):  # a tool that stops a process for a moment only looks at it
            halted.send_signal(signal.SIGSTOP)
            await asyncio.sleep(LOOK / 10)
            halted.send_signal(signal.SIGCONT)
            await asyncio.sleep(LOOK)
        assert not looking.done()
        halted.send_signal(signal.SIGSTOP)
        assert await asyncio.wait_for(looking, 30) == halted.pid
    finally:
        working.kill()
        working.wait()


async def test_a_process_that_is_dead_is_not_stopped(holder: LifelineProcess) -> None:
    holder.kill()
    looking = asyncio.create_task(stopped([holder.process.pid]))
    done, _ = await asyncio.wait({looking}, timeout=2 * LOOK * LOOKS)
    assert not done
    looking.cancel()
