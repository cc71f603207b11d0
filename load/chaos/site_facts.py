"""What a run says of its server, as the server and its pool tell it."""

from __future__ import annotations

from pathlib import Path

import httpx

from load.chaos.faults import seat_pids
from load.chaos.pool_server import connect
from load.server import OrcaServer


def facts(server: OrcaServer, keys: list[str]) -> str:
    """Model, numerics, schedulers that own a seat, engines, gateways, tenants, and when the pool's file is synced."""
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    version = httpx.get(server.url + "/version", headers=headers, timeout=10).raise_for_status().json()
    schedulers, engines = (set(seat_pids(server.data_dir, name)) - {0} for name in ("scheduler_pid", "engine_pid"))
    return (
        f"Model {version['model']}, numerics {version['numerics']}, schedulers with a seat {len(schedulers)}, engines "
        f"with weights {len(engines)}, gateways {len(server.pids('ray::ServeReplica:orca:gateway'))}, tenants "
        f"{len(keys) or 1}, appendfsync {_sync(server.data_dir)}."
    )


def _sync(data_dir: Path) -> str:
    with connect(data_dir) as pool:
        told = pool.config_get("appendfsync")
    assert isinstance(told, dict)
    return str(told["appendfsync"])
