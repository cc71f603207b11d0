"""Processes that only have a lifeline, to be killed and stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"
PROGRAM = f"""
import time
from actors.liveness import Lifeline
print(Lifeline("{HERE}").address, flush=True)
time.sleep(600)
"""


class LifelineProcess:
    """A process; `address` is the address of its lifeline."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    @property
    def owner(self) -> str:
        """The owner as which it would take a seat."""
        return f"{self.address}/{self.process.pid}"

    def sockets(self) -> int:
        """The number of sockets that it has open."""
        return sum(_is_socket(file) for file in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _is_socket(file: Path) -> bool:
    try:
        return os.readlink(file).startswith("socket:")
    except FileNotFoundError:  # just closed
        return False
