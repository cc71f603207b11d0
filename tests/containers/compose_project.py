"""docker-compose.yml as a project of real containers, and its clients."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from tests.containers.daemon import Daemon, compose_command
from tests.deploy.conftest import ROOT

PROJECT = "orca-cluster-test"
READY = 300.0  # seconds
Value = TypeVar("Value")


class ComposeProject:
    """The containers of the compose file, with `settings` in the shell's place. `clients` run where its ports are."""

    def __init__(self, daemon: Daemon, file: Path, settings: dict[str, str]) -> None:
        self.daemon, self.settings, self.url = daemon, settings, f"http://127.0.0.1:{settings['ORCA_PORT']}"
        self._command = [*compose_command(), "-p", PROJECT, "-f", str(file), "--project-directory", str(ROOT)]
        self.clients = ThreadPoolExecutor(16, initializer=daemon.enter)

    def compose(self, *words: str) -> str:
        return self.daemon.run(*self._command, *words, **self.settings)

    def docker(self, *words: str) -> str:
        return self.daemon.run("docker", *words)

    def up(self, *services: str) -> None:
        self.compose("up", "--detach", "--no-build", *services)

    def containers(self, service: str) -> list[str]:
        """Ids of the service's containers, ended ones too."""
        labels = {"project": PROJECT, "service": service}
        filters = [
            word for name, value in labels.items() for word in ("-f", f"label=com.docker.compose.{name}={value}")
        ]
        return self.docker("ps", "--all", "--quiet", "--no-trunc", *filters).split()

    def state(self, container: str) -> dict[str, Any]:
        """What Docker says of a container's process: Status, ExitCode, OOMKilled, Health."""
        state: dict[str, Any] = json.loads(self.docker("inspect", "--format", "{{json .State}}", container))
        return state

    def healthy(self, service: str) -> None:
        self.until(
            f"{service} is healthy",
            lambda: all(self.state(each)["Health"]["Status"] == "healthy" for each in self.containers(service)),
        )

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + READY
        while not condition():
            assert time.monotonic() < end, f"not within {READY} s: {what}\n{self.compose('logs', '--tail=60')}"
            time.sleep(0.5)

    def ask(self, path: str, **asked: Any) -> httpx.Response:
        """A request of a client; fails unless it is answered."""
        method = "POST" if "json" in asked else "GET"
        url = path if path.startswith("http") else self.url + path
        reply = self.client(lambda: httpx.request(method, url, timeout=120, **asked))
        assert reply.is_success, reply.text
        return reply

    def client(self, of: Callable[[], Value]) -> Value:
        return self.clients.submit(of).result()


@contextlib.contextmanager
def composed(daemon: Daemon, **settings: str) -> Iterator[ComposeProject]:
    """The project, of which no container runs yet; at the end its containers and volumes are removed."""
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    if compose_command() == ("docker-compose",):
        del content["name"]  # version 1 of Compose knows no such key; its option -p gives the name
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump(content, file)
        file.flush()
        project = ComposeProject(daemon, Path(file.name), settings)
        try:
            yield project
        finally:
            project.compose("--profile", "load", "--profile", "monitoring", "down", "--volumes", "--timeout", "60")
            project.clients.shutdown()
