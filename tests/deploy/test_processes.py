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

from load.server import metrics
from tests.deploy.asked import tokens_during, tokens_of
from tests.deploy.compose_cluster import ComposeCluster, composed, with_args
from tests.deploy.conftest import ROOT
from tests.tiny_models import make_tiny_model

# the clusters of the other tests, as processes that docker-compose.yml names
pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(600)]

PASSWORD = "abc123"


@pytest.fixture(scope="module")
def cluster(compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeCluster]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    with composed(compose, model, "worker") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def deployed(cluster: ComposeCluster) -> ComposeCluster:
    """The cluster with the application of deploy/serve.yaml, deployed as Compose does."""
    cluster.prepare_deploy(with_args())
    cluster.start("deploy")
    cluster.until_deployed()
    cluster.healthy("deploy")
    return cluster


def test_compose_gets_healthy_and_serves_locust(deployed: ComposeCluster) -> None:
    load = ["--headless", "--users", "2", "--requests", "4", "--max-tokens", "8", "--run-time", "60s"]
    done = deployed.containers.run([*deployed.services["locust"]["command"], *load])
    assert done.returncode == 0, done.stdout
    assert re.search(r"POST +/v1/chat/completions +4 +0\(0.00%\)", done.stdout), done.stdout
    assert metrics(deployed.url)["orca:engines"] == 1


def test_requests_outlive_a_redeploy_and_the_engine_keeps_its_weights(deployed: ComposeCluster) -> None:
    undisturbed = tuple(tokens_of(deployed))
    engine = loaded_engine(deployed)
    assert tokens_during(deployed, lambda: redeploy(deployed, with_args(max_batch_size=4))) == {undisturbed}
    assert loaded_engine(deployed) == engine


@pytest.mark.chaos
def test_an_engine_of_another_build_is_replaced_under_requests(deployed: ComposeCluster) -> None:
    undisturbed = tuple(tokens_of(deployed))
    engines = deployed.pids("ray::EngineActor")
    assert tokens_during(deployed, lambda: redeploy(deployed, with_args(kv_blocks=200))) == {undisturbed}
    assert not set(deployed.pids("ray::EngineActor")) & set(engines)


def test_serve_config_of_the_ray_service_answers_a_chat(deployed: ComposeCluster, ray_service: dict[str, Any]) -> None:
    """With the pool of the StatefulSet, its password and the URL that pods are given."""
    _, pool = yaml.safe_load_all((ROOT / "deploy/kuberay/base/pool.yaml").read_text())
    (server,) = pool["spec"]["template"]["spec"]["containers"]
    folder = deployed.folder / "orca-pool"
    folder.mkdir()
    of_this_machine = {"$(POOL_PASSWORD)": PASSWORD, "/data": str(folder)}
    command = [of_this_machine.get(part, part) for part in server["command"]]
    deployed.containers.start("orca-pool", [*command, "--port", str(deployed.other_pool_port)])

    config = yaml.safe_load(ray_service["spec"]["serveConfigV2"])
    (app,) = config["applications"]
    (url,) = [v["value"] for v in pod_variables(ray_service) if v["name"] == "ORCA_REDIS_URL"]
    url = url.replace("$(POOL_PASSWORD)", PASSWORD).replace("orca-pool:6379", f"127.0.0.1:{deployed.other_pool_port}")
    file = deployed.folder / "redis-url"  # the pool's variable is that of the other test
    file.write_text(url)
    app["args"]["redis_url"] = str(file)
    redeploy(deployed, config)
    deployed.until_answering("/ready")
    body = {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 8, "ignore_eos": True}
    reply = httpx.post(deployed.url + "/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 8


def test_the_deployer_ends_with_its_application(deployed: ComposeCluster) -> None:
    """So that Compose starts it again, and it deploys to the next head."""
    deployed.applications("DELETE")
    assert deployed.containers.wait("deploy") == 1


def redeploy(cluster: ComposeCluster, config: dict[str, Any]) -> None:
    """Deploy another config; returns when the application runs, and no scheduler of before any more."""
    before = set(cluster.pids("ray::ServeReplica:orca:scheduler"))
    cluster.deploy(config)
    cluster.containers.until(
        "the schedulers are new", lambda: not before & set(cluster.pids("ray::ServeReplica:orca:scheduler"))
    )
    cluster.until_deployed()


def loaded_engine(cluster: ComposeCluster) -> int:
    """The process that has the weights, as its owner says, which may be about to attach to it."""
    said: list[float] = []

    def serves() -> bool:
        said.append(metrics(cluster.url).get("orca:engine_pid", 0))
        return said[-1] > 0

    cluster.containers.until("an engine serves", serves)
    return int(said[-1])


def pod_variables(ray_service: dict[str, Any]) -> list[dict[str, Any]]:
    head = ray_service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    return head["containers"][0]["env"]
