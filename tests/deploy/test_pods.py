"""The manifests' pods, run: KubeRay's command lines, read-only file systems, users, ports and NetworkPolicies.

Two workers with an engine each answer chats with a tiny model; then one of them dies under a stream.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.pool.server.binaries import choose_server
from services.settings.settings import Settings
from tests.deploy import kuberay_operator, namespaces, pods
from tests.deploy.conftest import kustomize
from tests.deploy.policies import open_ports
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KEY, RAY_TOKEN = "sk-of-a-test", "0" * 64
SECRETS = {"orca-pool": {"password": "abc123"}, "orca-keys": {"keys": f"default: {KEY}\n"}}
QUICK = {"ORCA_MODEL": "/var/cache/orca/tiny", "ORCA_DTYPE": "float32", "ORCA_KV_BLOCKS": "1024", "ORCA_THREADS": "1"}
BODY = {"messages": [{"role": "user", "content": "hello world"}], "temperature": 0, "ignore_eos": True}


class Run:
    """The pods of the base, and what asks them: a client, a stranger and the operator."""

    def __init__(self, cluster: pods.Cluster, objects: list[dict[str, Any]]) -> None:
        self.cluster = cluster
        (self.service,) = [o for o in objects if o["kind"] == "RayService"]
        (pool,) = [o for o in objects if o["kind"] == "StatefulSet"]
        self._pool = pool["spec"]["template"]
        cluster.names = {"orca-pool": "pool", kuberay_operator.HEAD_SERVICE: "head"}
        cluster.secrets[kuberay_operator.CLUSTER] = {"auth_token": RAY_TOKEN}

    def start(self) -> None:
        manifests = {
            "pool": self._pool,
            "head": kuberay_operator.head_pod(self.service),
            "worker-1": kuberay_operator.worker_pod(self.service),
            "worker-2": kuberay_operator.worker_pod(self.service),
            "operator": _outsider({"app.kubernetes.io/name": "kuberay-operator"}),
            "client": _outsider({}),
        }
        for name, manifest in manifests.items():
            self.cluster.add(name, manifest)
        for name in ("pool", "head", "worker-1", "worker-2"):
            self.cluster.pods[name].start()
        self.cluster.until("the head's agents answer", lambda: self._is_healthy("head"))
        self.deploy()
        for name in ("worker-1", "worker-2"):
            worker = self.cluster.pods[name]
            self.cluster.until(f"{name} is ready", lambda worker=worker: worker.probe("readinessProbe"))
            self.cluster.until(f"{name} serves", lambda name=name: self.ask(name, "/ready")[0] == 200)

    def _is_healthy(self, name: str) -> bool:
        """The probe that the operator adds, which the kubelet sends from the node."""
        address = f"http://{self.cluster.pods[name].address}:{kuberay_operator.AGENT_PORT}/api/healthz"
        return subprocess.run(["curl", "-sf", "-m", "5", "-o", os.devnull, address], check=False).returncode == 0

    def deploy(self) -> None:
        head = self.cluster.pods["head"].address
        config = json.dumps(yaml.safe_load(self.service["spec"]["serveConfigV2"]))
        token = f"Authorization: Bearer {RAY_TOKEN}"
        url = f"http://{head}:8265/api/serve/applications/"
        put = ["curl", "-sSf", "-m", "60", "-X", "PUT", "-H", token, "-H", "Content-Type: application/json"]
        self.cluster.pods["operator"].enter(*put, "-d", config, url)

    def ask(
        self, pod: str, path: str, body: dict[str, Any] | None = None, key: str = KEY, again: str = ""
    ) -> tuple[int, str]:
        """The client's request to a pod's port of the API: status and text; status 0 if nothing answers. `again` is its
        Idempotency-Key."""
        command = ["curl", "-s", "-m", "120", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {key}"]
        if again:
            command += ["-H", f"Idempotency-Key: {again}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        address = self.cluster.pods[pod].address
        inside = ["ip", "netns", "exec", "orca-client", *command, f"http://{address}:8000{path}"]
        text, _, status = subprocess.run(inside, capture_output=True, text=True, check=False).stdout.rpartition("\n")
        return int(status or 0), text

    def number_of(self, metric: str) -> float:
        """The sum of a metric over its series."""
        lines = self.ask("worker-1", "/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric + "{"))

    def reaches(self, source: str, target: str, port: int) -> bool:
        """Whether a pod can connect to a port of another."""
        address = self.cluster.pods[target].address
        probe = f"exec 3<>/dev/tcp/{address}/{port}"
        inside = ["ip", "netns", "exec", f"orca-{source}", "timeout", "1", "bash", "-c", probe]
        return subprocess.run(inside, capture_output=True, check=False).returncode == 0


def _outsider(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"labels": labels}}


@pytest.fixture(scope="module")
def running() -> Iterator[Run]:
    if reason := namespaces.missing():
        pytest.skip(reason)
    objects = kustomize("base")
    with tempfile.TemporaryDirectory(prefix="orca-pods-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        claims = {claim: folder / claim for claim in ("orca-cache", "orca-files", "data")}
        cache = claims["orca-cache"]
        cache.mkdir()
        make_tiny_model(cache / "tiny", max_position_embeddings=4096)
        shutil.copytree(Settings().cache_dir / "kernels", cache / "kernels")  # compiling them takes long
        for path in (cache, *cache.rglob("*")):
            os.chown(path, 1000, 1000)
        programs = folder / "programs"
        programs.mkdir()
        (programs / "valkey-server").symlink_to(choose_server().path)
        with pods.Cluster(objects, folder, claims, programs) as cluster:
            cluster.secrets |= SECRETS
            for data in cluster.config.values():
                data |= QUICK
            run = Run(cluster, objects)
            run.start()
            yield run


def test_a_chat_is_answered_by_every_worker_with_a_key_alone(running: Run) -> None:
    for worker in ("worker-1", "worker-2"):
        status, text = running.ask(worker, "/v1/chat/completions", BODY | {"max_tokens": 8})
        assert status == 200, text
        assert json.loads(text)["usage"]["completion_tokens"] == 8
        assert running.ask(worker, "/v1/chat/completions", BODY, key="sk-of-a-stranger")[0] == 401


def test_every_port_that_others_may_need_is_in_the_policies(running: Run) -> None:
    everything = running.cluster.pods
    for name in ("head", "worker-1", "worker-2"):
        pod, other = everything[name], everything["worker-2" if name == "worker-1" else "worker-1"]
        known = open_ports(running.cluster.policies, pod.labels, other.labels)
        local = {8000, 8080, 8404, 8500, 9101, 10001}  # the API on the head, Ray's metrics, HAProxy's, Ray's client
        unknown = {p for p in pod.listening() if not any(first <= p <= last for first, last in known)}
        assert unknown <= local, f"{name} listens on {sorted(unknown - local)}"


def test_nothing_between_the_nodes_was_dropped(running: Run) -> None:
    nodes = [running.cluster.pods[name] for name in ("head", "worker-1", "worker-2")]
    for pod in nodes:
        for other in nodes:
            if pod is not other:
                assert pod.dropped(other) == 0, f"{other.name} could not reach {pod.name}"


@pytest.mark.parametrize(
    ("target", "port"), [("pool", 6379), ("head", 6379), ("head", 8265), ("head", 8000), ("worker-1", 52365)]
)
def test_a_stranger_reaches_the_api_alone(running: Run, target: str, port: int) -> None:
    assert not running.reaches("client", target, port)
    assert running.reaches("client", "worker-1", 8000)


def test_the_operator_reaches_the_dashboard_and_not_the_pool(running: Run) -> None:
    assert running.reaches("operator", "head", 8265)
    assert not running.reaches("operator", "pool", 6379)


def test_nothing_can_be_written_outside_the_volumes(running: Run) -> None:
    pod = running.cluster.pods["worker-1"]
    (child,) = pod.first_processes()
    for path, written in (
        ("/etc/x", False),
        ("/usr/local/bin/x", False),
        ("/tmp/x", True),
        ("/var/cache/orca/x", True),
    ):
        touch = ["nsenter", "-t", str(child), "-m", "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
        done = subprocess.run([*touch, "touch", path], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == written, done.stderr


@pytest.mark.parametrize("what", ["cut off", "killed"])
def test_requests_outlive_the_node_of_an_engine(running: Run, what: str) -> None:
    """Enough of them that both engines run some; a client sends its request again, with its key, when it breaks."""
    body = BODY | {"max_tokens": 400}
    undisturbed = json.loads(running.ask("worker-1", "/v1/chat/completions", body)[1])["choices"]
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        key = f"{what} {number}"
        answers = iter(lambda: running.ask("worker-1", "/v1/chat/completions", body, again=key), None)
        found[number] = next(json.loads(text)["choices"] for status, text in answers if status == 200)

    asking = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(8)]
    for each in asking:
        each.start()
    running.cluster.until("both engines run some", lambda: running.number_of("vllm:num_requests_running") > 4)
    worker = running.cluster.pods["worker-2"]
    if what == "killed":
        worker.kill()
        running.cluster.until("all requests are answered", lambda: len(found) == 8)
    else:
        with worker.cut_off():
            running.cluster.until("all requests are answered", lambda: len(found) == 8)
        running.cluster.until("it serves again", lambda: running.ask("worker-2", "/ready")[0] == 200)
    assert all(choices == undisturbed for choices in found.values())
