"""A whole Ray worker node dies, with all that runs on it: what it served goes on at another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.asked import tokens_of
from tests.deploy.compose_cluster import composed, with_args
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(600)]


def test_requests_outlive_the_node_of_their_engine(
    compose: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = make_tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    with composed(compose, model, "worker", "worker-2") as cluster:
        cluster.deploy(with_args(gateways=1))  # nodes of one machine would give their gateways the same port
        cluster.until_deployed()
        cluster.until_answering("/ready")
        undisturbed = tokens_of(cluster)
        engine = cluster.pids("ray::EngineActor")
        (node,) = [name for name in ("worker", "worker-2") if cluster.containers.holds(name, engine[0])]
        assert tokens_of(cluster, lambda: cluster.containers.kill(node)) == undisturbed
        assert not set(engine) & set(cluster.pids("ray::EngineActor"))
