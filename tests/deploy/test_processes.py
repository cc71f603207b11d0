"""What deploy/ describes, run: the services of docker-compose.yml as processes, with a tiny model.

The Ray cluster they make serves the compose file's application first, then the RayService's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.asked import tokens_of
from tests.deploy.compose_cluster import ComposeCluster, composed
from tests.deploy.conftest import ROOT
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PASSWORD = "abc123"


@pytest.fixture(scope="module")
def cluster(compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    with composed(compose, model, "worker") as cluster:
        yield cluster


def test_compose_gets_healthy_and_serves_locust(cluster: ComposeCluster) -> None:
    containers = cluster.containers
    cluster.on_this_machine(yaml.safe_load((ROOT / "deploy/serve.yaml").read_text()))
    cluster.start("deploy")
    cluster.until_deployed()
    cluster.healthy("deploy")

    load = ["--headless", "--users", "2", "--requests", "4", "--max-tokens", "8", "--run-time", "60s"]
    done = containers.run([*cluster.services["locust"]["command"], *load])
    assert done.returncode == 0, done.stdout
    assert re.search(r"SSE +e2e +4 +0\(0.00%\)", done.stdout), done.stdout
    page = httpx.get(cluster.url + "/metrics").text
    assert re.search(r"^orca:engines\{.*\} 1\.0$", page, re.MULTILINE), page


@pytest.mark.chaos
def test_a_request_outlives_a_redeploy_and_the_engine_keeps_its_weights(cluster: ComposeCluster) -> None:
    undisturbed = tokens_of(cluster)
    engine = cluster.pids("ray::EngineActor")
    assert tokens_of(cluster, lambda: redeploy(cluster, max_batch_size=4)) == undisturbed
    cluster.until_deployed()
    assert cluster.pids("ray::EngineActor") == engine


@pytest.mark.chaos
def test_an_engine_of_another_build_is_replaced_under_a_request(cluster: ComposeCluster) -> None:
    undisturbed = tokens_of(cluster)
    engine = cluster.pids("ray::EngineActor")
    assert tokens_of(cluster, lambda: redeploy(cluster, kv_blocks=200)) == undisturbed
    cluster.until_deployed()
    assert not set(cluster.pids("ray::EngineActor")) & set(engine)


def test_the_deployer_ends_with_its_application(cluster: ComposeCluster) -> None:
    """So that Compose starts it again, and it deploys to the next head."""
    containers = cluster.containers
    assert containers.run(["serve", "shutdown", "--yes", "--address", cluster.dashboard]).returncode == 0
    assert containers.wait("deploy") == 1


def test_serve_config_of_the_ray_service_answers_a_chat(cluster: ComposeCluster, ray_service: dict[str, Any]) -> None:
    """By `serve deploy`, with the pool of the StatefulSet, its password and the URL that pods are given."""
    containers = cluster.containers
    _, pool = yaml.safe_load_all((ROOT / "deploy/kuberay/base/pool.yaml").read_text())
    (server,) = pool["spec"]["template"]["spec"]["containers"]
    folder = cluster.folder / "orca-pool"
    folder.mkdir()
    command = [part.replace("$(POOL_PASSWORD)", PASSWORD) for part in server["command"]]
    containers.start("orca-pool", [*command, "--port", str(cluster.other_pool_port), "--dir", str(folder)])

    config = yaml.safe_load(ray_service["spec"]["serveConfigV2"])
    (app,) = config["applications"]
    del app["args"]["model"]  # of the environment, as are the settings that make the test quick
    (url,) = [v["value"] for v in pod_variables(ray_service) if v["name"] == "ORCA_REDIS_URL"]
    app["args"]["redis_url"] = url.replace("$(POOL_PASSWORD)", PASSWORD).replace(
        "orca-pool:6379", f"127.0.0.1:{cluster.other_pool_port}"
    )
    done = containers.run(["serve", "deploy", "--address", cluster.dashboard, str(cluster.on_this_machine(config))])
    assert done.returncode == 0, done.stdout
    cluster.until_deployed()
    cluster.until_answering("/ready")
    body = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "ignore_eos": True}
    reply = httpx.post(cluster.url + "/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 8


def redeploy(cluster: ComposeCluster, **args: Any) -> None:
    """Deploy again with other `args`; returns when no scheduler of before runs any more."""
    before = set(cluster.pids("ray::ServeReplica:orca:scheduler"))
    cluster.deploy(**args)
    cluster.containers.until(
        "the schedulers are new", lambda: not before & set(cluster.pids("ray::ServeReplica:orca:scheduler"))
    )


def pod_variables(ray_service: dict[str, Any]) -> list[dict[str, Any]]:
    head = ray_service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    return head["containers"][0]["env"]
