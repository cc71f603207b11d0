"""Containers as processes of this machine: their command lines run as written, on other ports and other folders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from actors.environment import free_ports, own_places
from tests.deploy.conftest import ROOT

CONTAINER = Path(__file__).with_name("container.py")
START_TIMEOUT = 60.0  # seconds


class Containers:
    """Runs commands with what stands in `rewrite` replaced, and ends all of them when left by `with`.

    Each runs in a copy of this process's environment without its ORCA_ and RAY_ variables, plus `environment`.
    """

    def __init__(self, rewrite: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._rewrite = re.compile("|".join(re.escape(key) for key in sorted(rewrite, key=len, reverse=True)))
        self._by = dict(rewrite)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = clean | {"PATH": path, "PYTHONPATH": str(ROOT)} | dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = Path(tempfile.mkdtemp(prefix="orca-logs-"))

    def __enter__(self) -> Containers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, Any] | None = None) -> None:
        arguments = [self.rewritten(part) for part in command]
        with (self._logs / name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, str(CONTAINER), *arguments],
                cwd=ROOT,
                env=self._environment | {k: self.rewritten(str(v)) for k, v in (environment or {}).items()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def wait(self, name: str) -> int:
        """The exit status of a container that ends by itself."""
        process = self._running[name]
        status = process.wait(START_TIMEOUT)
        del self._running[name]
        return status

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command that ends, run beside the containers: a health check, a client."""
        arguments = [self.rewritten(part) for part in command]
        return subprocess.run(
            arguments,
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_TIMEOUT,
            check=False,
        )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for `condition`; fails with all logs after a while, or when a container has ended."""
        end = time.monotonic() + START_TIMEOUT
        while not condition():
            ended = [name for name, process in self._running.items() if process.poll() is not None]
            assert not ended, f"{ended} ended while waiting: {what}\n{self.logs()}"
            assert time.monotonic() < end, f"not within {START_TIMEOUT} s: {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self._logs.iterdir())

    def rewritten(self, text: str) -> str:
        return self._rewrite.sub(lambda match: self._by[match.group()], text)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def deployed(dashboard: str, token: str) -> bool:
    """Whether the application runs; fails with Serve's own words when it cannot."""
    try:
        reply = httpx.get(f"{dashboard}/api/serve/applications/", headers={"Authorization": f"Bearer {token}"})
    except httpx.HTTPError:
        return False
    application = reply.json()["applications"].get("orca", {"status": "unknown"})
    assert application["status"] not in ("DEPLOY_FAILED", "UNHEALTHY"), application["message"]
    return application["status"] == "RUNNING"


class Ports:
    """Ports for a cluster of a test's own, none of them Ray's or Redis' usual ones."""

    def __init__(self) -> None:
        first = free_ports(8, 29_000, 30_000)  # above those of own_places
        self.pool, self.api, self.gcs, self.dashboard, self.client, self.agent, self.worker_agent = range(
            first, first + 7
        )


def ray_environment(folder: Path) -> dict[str, str]:
    """Variables that keep a test's cluster to the loopback address and to `folder`, and let it end at once."""
    haproxy = folder / "haproxy"
    haproxy.mkdir()
    return own_places(haproxy) | {
        "HOME": str(folder),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    }
