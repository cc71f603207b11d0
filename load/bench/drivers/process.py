"""A system in a process of its own, which answers each line of JSON with one."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class Process:
    """Runs a driver. Its first line, which comes when it is ready, is `about`."""

    def __init__(self, *command: str) -> None:
        self._command = " ".join(command)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Process:
        self.about: Any = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, what: Any) -> Any:
        """The answer to this line."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._command} ended with code {self._process.wait()}")
        return json.loads(line)
