"""The command lines and health checks of docker-compose.yml, run as processes: all get healthy, Locust is served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.pool.binaries import choose_server
from tests.deploy.conftest import ROOT
from tests.deploy.containers import Containers, Ports, answers, deployed, ray_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def interpolated(value: Any) -> Any:
    """`${NAME:-default}` as Compose resolves it where no variable is set."""
    if isinstance(value, dict):
        return {key: interpolated(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner) for inner in value]
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) if isinstance(value, str) else value


def rewrite(ports: Ports, folder: Path) -> dict[str, str]:
    """Hosts and ports of the containers' networks, and paths in them, as they are on this machine."""
    here = "127.0.0.1"
    return {
        "valkey-server": str(choose_server().path),
        "pool:6379": f"{here}:{ports.pool}",
        "head:6379": f"{here}:{ports.gcs}",
        "head:8265": f"{here}:{ports.dashboard}",
        "127.0.0.1:8265": f"{here}:{ports.dashboard}",
        "head:8000": f"{here}:{ports.api}",
        "127.0.0.1:52365": f"{here}:{ports.worker_agent}",
        "--port=6379": f"--port={ports.gcs}",
        "--dashboard-port=8265": f"--dashboard-port={ports.dashboard}",
        "--dashboard-host=0.0.0.0": f"--dashboard-host={here}",
        "/var/cache/orca": str(folder / "cache"),
        "deploy/serve.yaml": str(folder / "serve.yaml"),
    }


def extra_arguments(ports: Ports, folder: Path) -> dict[str, list[str]]:
    """What keeps containers apart that share this machine."""
    node = ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    return {
        "pool": ["--port", str(ports.pool), "--bind", "127.0.0.1", "--dir", str(folder)],
        "head": [
            *node,
            f"--dashboard-agent-listen-port={ports.agent}",
            f"--ray-client-server-port={ports.client}",
        ],
        "worker": [*node, f"--dashboard-agent-listen-port={ports.worker_agent}"],
    }


def on_loopback(config: Path, port: int) -> str:
    serve = yaml.safe_load(config.read_text())
    serve["http_options"] = {"host": "127.0.0.1", "port": port}
    return yaml.safe_dump(serve)


def test_containers_get_healthy_and_serve_locust(compose: dict[str, Any], tiny_model: Path, short_folder: Path) -> None:
    services = interpolated(compose)["services"]
    ports = Ports()
    extra = extra_arguments(ports, short_folder)
    (short_folder / "serve.yaml").write_text(on_loopback(ROOT / "deploy/serve.yaml", ports.api))
    settings = {"ORCA_DEVICE": "cpu", "ORCA_DTYPE": "float32", "ORCA_KV_BLOCKS": "64", "ORCA_THREADS": "1"}
    # Ray takes nodes on the loopback address for a cluster only when told that it is one
    own = {"ORCA_MODEL": str(tiny_model), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    with Containers(rewrite(ports, short_folder), ray_environment(short_folder) | settings) as containers:

        def start(name: str) -> None:
            service = services[name]
            environment = service.get("environment", {})
            containers.start(name, service["command"] + extra.get(name, []), environment | own)

        def healthy(name: str) -> None:
            kind, *command = services[name]["healthcheck"]["test"]
            check = ["sh", "-c", *command] if kind == "CMD-SHELL" else command
            containers.until(f"{name} is healthy", lambda: containers.run(check).returncode == 0)

        start("pool")
        start("prepare")
        assert containers.wait("prepare") == 0, containers.logs()
        for name in ("head", "worker"):
            start(name)
            healthy(name)
        start("deploy")
        token = (short_folder / ".ray/auth_token").read_text().strip()
        dashboard = f"http://127.0.0.1:{ports.dashboard}"
        containers.until("the application", lambda: deployed(dashboard, token))
        healthy("deploy")
        load = ["--headless", "--users", "2", "--requests", "4", "--max-tokens", "8", "--run-time", "30s"]
        done = containers.run(services["locust"]["command"] + load)
        assert done.returncode == 0, done.stdout
        assert re.search(r"SSE +e2e +4 +0\(0.00%\)", done.stdout), done.stdout
        page = httpx.get(f"http://127.0.0.1:{ports.api}/metrics").text
        assert re.search(r"^orca:engines\{.*\} 1\.0$", page, re.MULTILINE), page

        containers.stop("head")
        assert containers.wait("deploy") == 1  # so that it is started again, and deploys to the next head
        assert not answers(f"http://127.0.0.1:{ports.api}/ready")
