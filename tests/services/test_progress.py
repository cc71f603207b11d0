"""Progress: a bar in a terminal, lines elsewhere, and nothing of either when the work is over."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from services import progress
from services.progress import Bar

ROOT = Path(__file__).parents[2]
WORK = """
import sys
from services.progress import Bar, print_beside
for number in Bar(range(3), desc="work", unit="parts", mininterval=0):
    print_beside(f"row {number}")
"""


def test_a_terminal_gets_a_bar_that_is_removed_at_the_end() -> None:
    end, theirs = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-c", WORK]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
    os.set_blocking(end, False)
    shown = os.read(end, 1 << 16).decode()
    os.close(theirs)
    os.close(end)
    assert done.stdout == "row 0\nrow 1\nrow 2\n"
    assert re.search(r"work:  67%\|.*\| 2 of 3 parts, \d+:\d+ passed, \d+:\d+ left", shown)
    assert shown.rpartition("\r")[2] == ""
    assert "\n" not in shown


def test_a_pipe_gets_no_bar_of_short_work() -> None:
    command = [sys.executable, "-c", WORK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("row 0\nrow 1\nrow 2\n", "")


def test_long_work_gets_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    lines: list[str] = []
    with Bar(desc="download", total=4, unit="MB", say=lines.append) as bar:
        bar.reach(1)
        bar.reach(3)
    assert lines[0].startswith("download: 0 of 4 MB (0%)")
    assert re.fullmatch(r"download: 3 of 4 MB \(75%\), \d+:\d+ passed, \d+:\d+ left", lines[-1])


def test_a_part_is_named_as_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    lines: list[str] = []
    with Bar(total=2, unit="parts", say=lines.append) as bar:
        bar.set_description("first")
    assert lines[-1].startswith("first: 0 of 2 parts (0%)")
