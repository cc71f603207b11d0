"""Containers as processes of this machine: their command lines run as written, on other ports and other folders."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.deploy.conftest import ROOT

CONTAINER = Path(__file__).with_name("container.py")
TIMEOUT = 120.0  # seconds, for machines with much else to do
RESTARTS = 3  # of a container whose service says so; Ray gives a raylet 30 s to start, which a busy machine may exceed


class Containers:
    """Runs commands with what stands in `rewrite` replaced, and ends all of them when left by `with`.

    Each has this process's environment without its ORCA_ and RAY_ variables, plus `environment`; logs are in `logs`.
    """

    def __init__(self, rewrite: Mapping[str, str], environment: Mapping[str, str], logs: Path) -> None:
        self._rewrite = re.compile("|".join(re.escape(key) for key in sorted(rewrite, key=len, reverse=True)))
        self._by = dict(rewrite)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = clean | {"PATH": path, "PYTHONPATH": str(ROOT)} | dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: dict[str, int] = {}
        self._again: dict[str, Callable[[], None]] = {}
        self._logs = logs
        logs.mkdir()

    def __enter__(self) -> Containers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, Any] | None = None, restart: bool = False
    ) -> None:
        """`restart`: while it is waited for, a container that ends is started again, as Docker does."""
        if restart:
            self._again[name] = partial(self.start, name, command, environment)
        arguments = [self._rewritten(part) for part in command]
        with (self._logs / name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(CONTAINER), *arguments],
                cwd=ROOT,
                env=self._environment | {k: self._rewritten(str(v)) for k, v in (environment or {}).items()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)

    def kill(self, name: str) -> None:
        """SIGKILL to all its processes at once, as when its machine fails."""
        process = self._running.pop(name)
        for pid in (process.pid, *below(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(TIMEOUT)

    def holds(self, name: str, pid: int) -> bool:
        """Whether a process is the container's."""
        return pid in below(self._running[name].pid)

    def wait(self, name: str) -> int:
        """The exit status of a container that ends by itself."""
        status = self._running[name].wait(TIMEOUT)
        del self._running[name]
        return status

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command that ends, run beside the containers: a health check, a client."""
        return subprocess.run(
            [self._rewritten(part) for part in command],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for `condition`; fails with all logs after a while, or when a container has ended."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            ended = [
                n for n, process in list(self._running.items()) if process.poll() is not None and not self._revived(n)
            ]
            assert not ended, f"{ended} ended while waiting: {what}\n{self.logs()}"
            assert time.monotonic() < end, f"not within {TIMEOUT} s: {what}\n{self.logs()}"
            time.sleep(0.2)

    def _revived(self, name: str) -> bool:
        """Start an ended container again, if its service says so and it did not end too often."""
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if name not in self._again or self._restarts[name] > RESTARTS:
            return False
        self._again[name]()
        return True

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self._logs.iterdir())

    def _rewritten(self, text: str) -> str:
        return self._rewrite.sub(lambda match: self._by[match.group()], text)


def below(root: int) -> list[int]:
    """The processes that a process started, and those that they did; a container's never leave it."""
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found[1:]
