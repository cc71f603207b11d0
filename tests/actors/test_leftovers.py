"""A cluster's processes are found by what they inherited, whoever their parent is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from actors.environment import mark_of
from actors.leftovers import end_processes_of, processes_of


def started(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    name, _, value = mark_of(folder).partition("=")
    return subprocess.Popen(command, env=os.environ | {name: value})


def test_orphans_are_found_and_ended_and_others_left_alone(tmp_path: Path) -> None:
    orphan = started(tmp_path / "ours", "sh", "-c", "sleep 100 & echo $! > " + str(tmp_path / "pid"))
    orphan.wait()
    pid = int((tmp_path / "pid").read_text())
    other = started(tmp_path / "ours-too", "sleep", "100")
    assert list(processes_of(tmp_path / "ours")) == [pid]
    end_processes_of(tmp_path / "ours")
    assert processes_of(tmp_path / "ours") == {}
    assert list(processes_of(tmp_path / "ours-too")) == [other.pid]
    end_processes_of(tmp_path / "ours-too")
    assert other.wait() < 0
