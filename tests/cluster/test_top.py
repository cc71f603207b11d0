"""`orca top` in a real terminal (a pty) and in a pipe, beside a stream of the real server."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from cli.top import MARKS
from load.server import ROOT, OrcaServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PATIENCE = 60.0
HOME = b"\x1b[H"  # begins a picture
COMMAND = [sys.executable, "-m", "cli", "top", "--url"]


class Terminal:
    """`orca top` in a terminal of 100 columns and 30 lines."""

    def __init__(self, url: str, folder: Path) -> None:
        self._end, theirs = pty.openpty()
        self.resize(100, 30)
        environment = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        for size in ("COLUMNS", "LINES"):  # they would go before the size of the terminal
            environment.pop(size, None)
        self.process = subprocess.Popen(
            [*COMMAND, url], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.shown = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, condition: Callable[[str], bool]) -> None:
        """Read until a whole picture fulfils the condition."""
        end = time.monotonic() + PATIENCE
        while not condition(self.picture()):
            assert select.select([self._end], [], [], max(0.0, end - time.monotonic()))[0], self.picture()
            self.shown += os.read(self._end, 1 << 16)

    def picture(self) -> str:
        """The last picture that was drawn completely."""
        *_, last, _ = [b"", *self.shown.split(HOME)]
        return last.decode()

    def press(self, key: bytes) -> int:
        """Press a key that ends it; returns the exit status."""
        os.write(self._end, key)
        while select.select([self._end], [], [], 0.1)[0] or self.process.poll() is None:
            if select.select([self._end], [], [], 0.0)[0]:
                self.shown += os.read(self._end, 1 << 16)
        return self.process.wait(PATIENCE)

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self._theirs)


def test_a_terminal_shows_iterations_resizes_and_ends_with_q(server: OrcaServer, tmp_path: Path) -> None:
    terminal = Terminal(server.url, tmp_path)
    try:
        modes = terminal.modes()
        terminal.until(lambda picture: "running 0" in picture)
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).is_success
        terminal.until(lambda picture: MARKS["i"] in picture and 20 * MARKS["t"] in picture)
        terminal.resize(40, 12)
        terminal.until(lambda picture: "running" in picture and "between tokens" not in picture)
        assert terminal.press(b"q") == 0
        assert terminal.modes() == modes
        assert b"\x1b[?1049l" in terminal.shown[-60:], "the screen before it is shown again"
    finally:
        terminal.close()


def test_a_pipe_gets_lines(server: OrcaServer, tmp_path: Path) -> None:
    command = f"{' '.join(COMMAND)} {server.url} | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["running"]
    assert "KV blocks" in done.stdout
    assert "\x1b" not in done.stdout
