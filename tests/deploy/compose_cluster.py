"""docker-compose.yml on this machine: its services as processes, its hosts and ports as free local ones."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from actors.cluster.environment import free_ports, haproxy_environment, haproxy_program
from actors.cluster.processes import processes_of
from services.pool.server.binaries import choose_server
from services.settings.settings import Settings
from tests.deploy.conftest import ROOT
from tests.deploy.containers import Containers

HERE = "127.0.0.1"


class ComposeCluster:
    """The services of a compose file; `start` one, wait until it is `healthy`. Files are in `folder`.

    A second worker is called `worker-2`.
    """

    def __init__(self, compose: dict[str, Any], folder: Path, settings: dict[str, str]) -> None:
        self.services = interpolated(compose)["services"]
        self.services["worker-2"] = self.services["worker"]
        self.folder, self.cache = folder, folder / "cache"
        first = free_ports(9, 29_000, 30_000)  # above those of haproxy_environment
        self.pool_port, self.other_pool_port, self.port, self._gcs = range(first, first + 4)
        dashboard, self._client, self._agent, self._worker_agent, self._agent_2 = range(first + 4, first + 9)
        self.url, self.dashboard = f"http://{HERE}:{self.port}", f"http://{HERE}:{dashboard}"
        (folder / "haproxy").mkdir()
        environment = haproxy_environment(folder / "haproxy") | {
            "HOME": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_worker_niceness": "0",  # as urgent as what else runs on this machine; in a container it is alone
        }
        self.containers = Containers(self._rewrite(dashboard), environment | settings, folder / "logs")
        self._settings = settings

    def _rewrite(self, dashboard: int) -> dict[str, str]:
        return {
            "valkey-server": str(choose_server().path),
            "/usr/local/bin/orca-haproxy": haproxy_program(),
            "pool:6379": f"{HERE}:{self.pool_port}",
            "head:6379": f"{HERE}:{self._gcs}",
            "head:8265": f"{HERE}:{dashboard}",
            "127.0.0.1:8265": f"{HERE}:{dashboard}",
            "head:8000": f"{HERE}:{self.port}",
            "127.0.0.1:52365": f"{HERE}:{self._worker_agent}",
            "--port=6379": f"--port={self._gcs}",
            "--dashboard-port=8265": f"--dashboard-port={dashboard}",
            "--dashboard-host=0.0.0.0": f"--dashboard-host={HERE}",
            "/var/cache/orca": str(self.cache),
            "deploy/serve.yaml": str(self.folder / "serve.yaml"),
        }

    def _extra(self, name: str) -> list[str]:
        """Arguments that keep containers apart that share a machine."""
        node = [f"--node-ip-address={HERE}", f"--temp-dir={self.folder}", "--dashboard-agent-listen-port"]
        extra = {
            "pool": ["--port", str(self.pool_port), "--bind", HERE, "--dir", str(self.folder)],
            "head": [*node, str(self._agent), f"--ray-client-server-port={self._client}"],
            "worker": [*node, str(self._worker_agent)],
            "worker-2": [*node, str(self._agent_2)],
        }
        return extra.get(name, [])

    def start(self, name: str) -> None:
        service = self.services[name]
        environment = service.get("environment", {}) | self._settings
        restart = service.get("restart") == "unless-stopped"
        self.containers.start(name, service["command"] + self._extra(name), environment, restart)

    def start_all(self, *workers: str) -> None:
        """Pool, head and `workers`, healthy; the model fetched and the token made as `prepare` does."""
        self.start("pool")
        self.start("prepare")
        assert self.containers.wait("prepare") == 0, self.containers.logs()
        for name in ("head", *workers):
            self.start(name)
            self.healthy(name)

    def healthy(self, name: str) -> None:
        """Wait until the service's own health check succeeds."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        check = ["sh", "-c", *command] if kind == "CMD-SHELL" else command
        if name == "worker-2":
            check = [part.replace("52365", str(self._agent_2)) for part in check]
        self.containers.until(f"{name} is healthy", lambda: self.containers.run(check).returncode == 0)

    def deploy(self, config: dict[str, Any]) -> None:
        """Deploy a Serve config, as KubeRay's operator does."""
        self.applications("PUT", self._on_this_machine(config))

    def prepare_deploy(self, config: dict[str, Any]) -> None:
        """Make a Serve config the one that the service `deploy` deploys."""
        (self.folder / "serve.yaml").write_text(yaml.safe_dump(self._on_this_machine(config)))

    def _on_this_machine(self, config: dict[str, Any]) -> dict[str, Any]:
        """With an address of ours; two nodes of one machine cannot both listen on it."""
        return config | {"http_options": {"host": HERE, "port": self.port}, "proxy_location": "HeadOnly"}

    def applications(self, method: str = "GET", config: dict[str, Any] | None = None) -> httpx.Response:
        """The answer of Serve's REST API on the head: GET tells of applications, PUT deploys, DELETE ends Serve."""
        token = (self.folder / ".ray/auth_token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = self.dashboard + "/api/serve/applications/"
        reply = httpx.request(method, url, json=config, headers=headers, timeout=60, verify=False)
        assert reply.is_success, reply.text
        return reply

    def pids(self, title: str) -> list[int]:
        """Processes of this cluster whose title starts with `title`."""
        return sorted(pid for pid in processes_of(self.folder / "haproxy") if _title(pid).startswith(title))

    def until_deployed(self) -> None:
        self.containers.until("the application runs", self._deployed)

    def _deployed(self) -> bool:
        """Whether the application runs; fails with Serve's own words when it cannot."""
        application = self.applications().json()["applications"].get("orca", {"status": "unknown"})
        assert application["status"] not in ("DEPLOY_FAILED", "UNHEALTHY"), application["message"]
        return application["status"] == "RUNNING"

    def until_answering(self, path: str) -> None:
        self.containers.until(f"{path} answers", lambda: answers(self.url + path))


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""  # ended meanwhile


@contextlib.contextmanager
def composed(compose: dict[str, Any], model: Path, *workers: str) -> Iterator[ComposeCluster]:
    """A cluster that serves `model`, so far without its application."""
    settings = {
        "ORCA_MODEL": str(model),
        "ORCA_DEVICE": "cpu",
        "ORCA_DTYPE": "float32",
        "ORCA_KV_BLOCKS": "256",
        "ORCA_THREADS": "1",
    }
    # a short path, as Ray puts unix sockets there
    with tempfile.TemporaryDirectory(prefix="o-", ignore_cleanup_errors=True) as folder:
        cluster = ComposeCluster(compose, Path(folder), settings)
        cluster.cache.mkdir()
        (cluster.cache / "kernels").symlink_to(Settings().cache_dir / "kernels")  # compiling them takes long
        with cluster.containers:
            cluster.start_all(*workers)
            yield cluster


def with_args(**args: Any) -> dict[str, Any]:
    """deploy/serve.yaml with `args` for the application."""
    config = yaml.safe_load((ROOT / "deploy/serve.yaml").read_text())
    config["applications"][0]["args"] = args
    return config


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, verify=False).is_success
    except httpx.HTTPError:
        return False


def interpolated(value: Any) -> Any:
    """`${NAME:-default}` as Compose resolves it where no variable is set."""
    if isinstance(value, dict):
        return {key: interpolated(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner) for inner in value]
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) if isinstance(value, str) else value
