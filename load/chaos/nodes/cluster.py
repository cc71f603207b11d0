"""A Ray cluster of machines in namespaces, with the pool's server and the clients on this side of the network."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import redis
import yaml

from actors.cluster.environment import haproxy_program
from actors.replica import find_model, open_shards
from load.chaos.nodes.machine import HERE, Machine, Network
from load.server import ROOT
from services.child_environment import without_settings
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.settings.sources import load

CONFIG = ROOT / "deploy/serve.yaml"
VARIABLES = ROOT / "deploy/kuberay/base/ray.env"
POOL_PORT, GCS_PORT, PORT = 6380, 6379, 8000
OBJECT_STORE = 80 << 20  # bytes; Ray's minimum is 75 MiB
READY = 180.0  # seconds


class Cluster:
    """A head without CPUs for the application, and workers with two: room for an engine, gateways and schedulers."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Files are in `folder`; `settings` are those of the application."""
        self.folder, self._settings = folder, dict(settings)
        self.network = Network()
        self.data = folder / "pool"
        self.redis_url = f"redis://{HERE}:{POOL_PORT}/0"
        self._token = secrets.token_hex(16)
        self._pool_server: subprocess.Popen[bytes] | None = None
        self.head = self._machine("head")
        self.workers: list[Machine] = []
        self.url, self.gcs = f"http://{self.head.address}:{PORT}", f"{self.head.address}:{GCS_PORT}"

    def __enter__(self) -> Cluster:
        self._start_pool()
        self._start_node(self.head, "--head", f"--port={GCS_PORT}", "--num-cpus=0", "--include-dashboard=false")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in (*self.workers, self.head):
            machine.end()
        if self._pool_server:
            self._pool_server.kill()
            self._pool_server.wait()

    def add_worker(self) -> Machine:
        """Start another worker node; returns at once."""
        worker = self._machine(f"worker-{len(self.workers) + 1}")
        self.workers.append(worker)
        self._start_node(worker, f"--address={self.gcs}", "--num-cpus=2")
        return worker

    def deploy(self) -> None:
        """Deploy the application and wait until it is ready."""
        config = yaml.safe_load(CONFIG.read_text())
        application = config["applications"][0]
        # Serve refuses it beside autoscaling
        application |= {"args": self._settings, "external_scaler_enabled": not self._settings.get("max_engines")}
        (self.head.folder / "serve.yaml").write_text(yaml.safe_dump(config))
        started = self.head.folder / "ray/ray_current_cluster"  # by which processes of the head find it
        _until("Ray's head is started", started.exists)
        # `serve deploy` asks the dashboard, which takes as much memory as two engines, so that heads here have none
        serve = str(Path(sys.executable).with_name("serve"))
        self.head.run([serve, "run", "--non-blocking", "--address=auto", "/tmp/serve.yaml"])  # its /tmp is its folder
        self._until_ready()

    def open_pool(self) -> RequestPool:
        """A client of the application's pool."""
        settings = load(**self._settings, redis_url=self.redis_url)
        return open_shards(settings, find_model(settings)[1])[0].pool

    def _machine(self, name: str) -> Machine:
        # those of Ray; the settings there are for pods
        given = dict(line.split("=", 1) for line in VARIABLES.read_text().splitlines() if line.startswith("RAY_"))
        own = {
            "RAY_SERVE_HAPROXY_BINARY_PATH": haproxy_program(),
            "RAY_memory_monitor_refresh_ms": "0",  # the machines share their memory with everything else here
            "PYTHONPATH": str(ROOT),
            "ORCA_REDIS_URL": self.redis_url,
            "ORCA_HOST": "0.0.0.0",
            "ORCA_ALLOW_NO_KEYS": "true",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
        }
        return Machine(name, self.folder / name, self.network, without_settings() | given | own)

    def _start_node(self, machine: Machine, *flags: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        own = [f"--node-ip-address={machine.address}", f"--object-store-memory={OBJECT_STORE}", "--block"]
        machine.start(ray, "start", *flags, *own)

    def _start_pool(self) -> None:
        """Start the pool's server, which keeps its whole history and syncs it before it answers."""
        self.data.mkdir(parents=True)
        binary = choose_server()
        options = {
            "bind": HERE,
            "port": str(POOL_PORT),
            "protected-mode": "no",
            "dir": str(self.data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",
            "maxmemory-policy": "noeviction",
        }
        if binary.version >= (7,):
            options["aof-timestamp-enabled"] = "yes"
        command = [str(binary.path)] + [part for name, value in options.items() for part in (f"--{name}", value)]
        self._pool_server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        client = redis.Redis.from_url(self.redis_url, socket_timeout=2)
        _until("the pool's server answers", lambda: bool(client.ping()), redis.RedisError)
        client.close()

    def _until_ready(self) -> None:
        _until("the server is ready", lambda: httpx.get(f"{self.url}/ready", timeout=5).is_success, httpx.HTTPError)


def _until(what: str, happened: Callable[[], bool], *not_yet: type[Exception]) -> None:
    """Wait until `happened()`; the exceptions `not_yet` mean that it has not. Raises TimeoutError."""
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline:
        with contextlib.suppress(*not_yet):
            if happened():
                return
        time.sleep(0.2)
    raise TimeoutError(f"within {READY:.0f} s it did not happen that {what}")
