"""The server that a chaos run hurts: its processes, its pool's server, and what it says of itself."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgpack
import redis

from load.server import OrcaServer
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

# titles of processes
ENGINE, SCHEDULER, GATEWAY = "ray::EngineActor", "ray::ServeReplica:orca:scheduler", "ray::ServeReplica:orca:gateway"
CONTROLLER, PROXY = "ray::ServeController", "ray::HAProxyManager"


class NoTarget(Exception):
    """There is no such process at the moment: one that died earlier is not back yet."""


@dataclass(slots=True)
class Site:
    """The server that is hurt.

    `serve_again` replaces `server` by a new one on the same folder and port; `poison` sends a request that kills
    engines and returns when it was refused. `past_lease` and `outage`: for how many seconds a scheduler and the pool's
    server are stopped.
    """

    server: OrcaServer
    serve_again: Callable[[], None]
    poison: Callable[[], Awaitable[None]] | None = None
    past_lease: float = 8.0
    outage: float = 20.0


def loaded_engine(server: OrcaServer) -> int:
    """The process id of one of the engines that have the weights."""
    pids = seat_pids(server.data_dir, "engine_pid")
    return random.choice(some([pid for pid in server.pids(ENGINE) if pid in pids], "engine with weights"))


def owning_schedulers(server: OrcaServer) -> list[int]:
    """The process ids of the schedulers that own a seat."""
    pids = seat_pids(server.data_dir, "scheduler_pid")
    return [pid for pid in server.pids(SCHEDULER) if pid in pids]


def seat_pids(data_dir: Path, gauge: str) -> list[int]:
    """The values of a gauge that the owners of the seats last wrote to the pool; none while the pool is away."""
    with contextlib.suppress(redis.RedisError), connect(data_dir) as pool:
        blobs = [pool.hget(key, "gauges") for key in pool.scan_iter("orca:*:seat:*")]
        return [int(msgpack.unpackb(blob).get(gauge, 0)) for blob in blobs if isinstance(blob, bytes)]
    return []


def some(pids: list[int], what: str) -> list[int]:
    """`pids`; raises NoTarget if there are none."""
    if not pids:
        raise NoTarget(what)
    return pids


def connect(data_dir: Path) -> redis.Redis:
    """A client of the pool's server on this folder."""
    return redis.Redis.from_url(PoolServer(choose_server(), data_dir).url, socket_timeout=2)


def keep_history(data_dir: Path) -> None:
    """Tell the pool's server to keep its whole append-only file, from which the history is read: no rewrites, which
    would drop what happened, and times in the file, if the server can write them."""
    with connect(data_dir) as server:
        server.config_set("auto-aof-rewrite-percentage", 0)
        with contextlib.suppress(redis.ResponseError):  # before version 7
            server.config_set("aof-timestamp-enabled", "yes")
