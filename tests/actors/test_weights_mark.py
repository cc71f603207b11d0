"""A mark lives as long as its process, which may be stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.weights_mark import WeightsMark, is_marked

PROGRAM = """
import sys, time
from actors.weights_mark import WeightsMark
mark = WeightsMark(sys.argv[1])
mark.set()
print("set", flush=True)
time.sleep(600)
"""


@pytest.fixture
def name(tmp_path: Path) -> str:
    return tmp_path.name


@pytest.fixture
def marked(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has set the mark of this name."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, name], cwd=root, stdout=subprocess.PIPE, text=True)
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


def test_a_mark_goes_with_its_process(marked: subprocess.Popen[str], name: str) -> None:
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
