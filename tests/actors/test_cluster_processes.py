"""The processes of a cluster, found by what they inherited, whatever their parent is; and the ports they listen on."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from actors.cluster.environment import mark_of
from actors.cluster.processes import Port, describe, end_processes_of, ports_of, processes_of


def started(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    name, _, value = mark_of(folder).partition("=")
    return subprocess.Popen(command, env=os.environ | {name: value})


def test_orphans_are_found_and_ended_and_other_processes_are_not(tmp_path: Path) -> None:
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


def test_a_process_that_is_being_started_is_found(tmp_path: Path) -> None:
    for _ in range(100):  # the kernel shows an empty environment for a moment in one start of thirty
        process = started(tmp_path, "sleep", "100")
        try:
            assert list(processes_of(tmp_path)) == [process.pid]
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("family", "host", "shown", "is_open"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", False),
        (socket.AF_INET, "0.0.0.0", "0.0.0.0", True),
        (socket.AF_INET6, "::1", "::1", False),
        (socket.AF_INET6, "::", "::", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1", False),
    ],
)
def test_a_port_that_listens(family: socket.AddressFamily, host: str, shown: str, is_open: bool) -> None:
    with socket.socket(family) as listening, socket.socket(family) as bound:
        listening.bind((host, 0))
        bound.bind((host, 0))
        port = listening.getsockname()[1]
        before = ports_of([os.getpid()])
        listening.listen()
        (found,) = set(ports_of([os.getpid()])) - set(before)
    assert (found.host, found.port, found.is_open) == (shown, port, is_open)


def test_one_line_says_what_others_reach() -> None:
    inner, outer = Port("127.0.0.1", 1, "a"), Port("0.0.0.0", 8000, "haproxy")
    assert describe([inner]).startswith("other machines reach: nothing; this machine reaches 1 port")
    assert "other machines reach: 0.0.0.0:8000 (haproxy);" in describe([inner, outer])
    assert "other machines reach: [::]:8000 (haproxy);" in describe([inner, Port("::", 8000, "haproxy")])
