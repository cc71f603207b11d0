"""A Ray cluster whose GCS keeps its state in a Redis: when the head is replaced, engines and name stay."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cluster.environment import mark_of
from actors.cluster.processes import end_processes_of
from load.server import ROOT, free_port
from services.pool.server.binaries import choose_server
from tests.pool_servers import TcpServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

RAY = Path(sys.executable).with_name("ray")
MEMORY = "100000000"  # bytes of an object store
# A detached actor on the worker node, which the first driver creates; what driver and actor say of the cluster
DRIVER = """
import json, os, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
from actors.placement import cluster_id

@ray.remote(num_cpus=1)
class Engine:
    def tell(self):
        from actors.placement import cluster_id
        return os.getpid(), cluster_id()

engine = Engine.options(name="engine", namespace="orca", lifetime="detached", get_if_exists=True).remote()
print(json.dumps([cluster_id(), *ray.get(engine.tell.remote(), timeout=100)]))
"""


class RayNodes:
    """A head without CPUs and a worker on this machine, each with a folder that identifies its processes."""

    def __init__(self, folder: Path, store: str) -> None:
        self.head, self.worker = folder / "head", folder / "worker"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("ORCA_", "RAY_"))} | {
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            "RAY_REDIS_ADDRESS": store,
            "RAY_external_storage_namespace": "identity",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "100",
        }

    def start(self, node: Path, *flags: str) -> None:
        name, _, value = mark_of(node).partition("=")
        command = [str(RAY), "start", "--node-ip-address=127.0.0.1", f"--object-store-memory={MEMORY}", *flags]
        done = subprocess.run(
            command, env=self._environment | {name: value}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, done.stdout

    def start_head(self) -> None:
        flags = (f"--port={self.port}", f"--temp-dir={self._folder}/ray", "--include-dashboard=false")
        self.start(self.head, "--head", "--num-cpus=0", *flags)

    def kill_head(self) -> None:
        end_processes_of(self.head)
        (self._folder / "ray" / "ray_current_cluster").unlink()  # the pod that replaces it has no such file

    def start_worker(self) -> None:
        self.start(self.worker, f"--address={self.address}", "--num-cpus=1")

    def ask(self) -> list[object]:
        """The cluster's name by a driver; the process id of the actor, and the name by it."""
        command = [sys.executable, "-c", DRIVER, self.address]
        done = subprocess.run(command, env=self._environment, text=True, stdout=subprocess.PIPE, timeout=120)
        assert done.returncode == 0
        found: list[object] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    server = TcpServer(choose_server(), tmp_path, port=free_port())
    asyncio.run(server.start())
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # paths of sockets are short
        nodes = RayNodes(Path(folder), f"127.0.0.1:{server.port}")
        yield nodes
        end_processes_of(nodes.head)
        end_processes_of(nodes.worker)
    asyncio.run(server.stop())


def test_the_name_of_a_cluster_survives_its_head_as_its_engines_do(nodes: RayNodes) -> None:
    nodes.start_head()
    nodes.start_worker()
    before = name, _, by_engine = nodes.ask()
    assert name == by_engine
    nodes.kill_head()
    nodes.start_head()
    assert nodes.ask() == before
