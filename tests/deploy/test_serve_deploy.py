"""The RayService's serveConfigV2 on a local Ray cluster, beside the pool of the manifests, answers a chat request."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.pool.binaries import choose_server
from tests.deploy.conftest import ROOT
from tests.deploy.containers import Containers, Ports, answers, deployed, ray_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PASSWORD = "abc123"


def pool_command() -> list[str]:
    _, pool = yaml.safe_load_all((ROOT / "deploy/kuberay/base/pool.yaml").read_text())
    return pool["spec"]["template"]["spec"]["containers"][0]["command"]


def pod_environment(ray_service: dict[str, Any]) -> dict[str, str]:
    head = ray_service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    lines = (ROOT / "deploy/kuberay/base/ray.env").read_text().splitlines()
    from_map = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return from_map | {variable["name"]: variable["value"] for variable in head["env"] if "value" in variable}


def serve_config(ray_service: dict[str, Any], model: Path, port: int) -> str:
    """serveConfigV2 with another model and another address; all else as it is."""
    config = yaml.safe_load(ray_service["spec"]["serveConfigV2"])
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    (app,) = config["applications"]
    app["args"] |= {"model": str(model), "device": "cpu", "dtype": "float32", "kv_blocks": 64, "threads": 1}
    return yaml.safe_dump(config)


def test_serve_config_of_the_ray_service_answers_a_chat(
    ray_service: dict[str, Any], tiny_model: Path, short_folder: Path
) -> None:
    ports = Ports()
    rewrite = {
        "valkey-server": str(choose_server().path),
        "$(POOL_PASSWORD)": PASSWORD,
        "orca-pool:6379": f"127.0.0.1:{ports.pool}",
    }
    config = short_folder / "serve.yaml"
    config.write_text(serve_config(ray_service, tiny_model, ports.api))
    dashboard, api = f"http://127.0.0.1:{ports.dashboard}", f"http://127.0.0.1:{ports.api}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}  # as the operator does
    environment = pod_environment(ray_service) | ray_environment(short_folder) | token
    with Containers(rewrite, environment) as pods:
        pods.start("pool", [*pool_command(), "--port", str(ports.pool), "--dir", str(short_folder)])
        ray = ["ray", "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
        ray += [f"--port={ports.gcs}", f"--dashboard-port={ports.dashboard}", f"--temp-dir={short_folder}"]
        ray += [f"--dashboard-agent-listen-port={ports.agent}", f"--ray-client-server-port={ports.client}"]
        pods.start("head", [*ray, "--object-store-memory=157286400"], environment)
        pods.until("Ray's dashboard", lambda: answers(dashboard + "/api/gcs_healthz"))
        done = pods.run(["serve", "deploy", "--address", dashboard, str(config)])
        assert done.returncode == 0, done.stdout
        pods.until("the application", lambda: deployed(dashboard, token["RAY_AUTH_TOKEN"]))
        pods.until("the API", lambda: answers(api + "/ready"))
        body = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "ignore_eos": True}
        reply = httpx.post(api + "/v1/chat/completions", json=body, timeout=30)
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["completion_tokens"] == 8
