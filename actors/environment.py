"""What Ray Serve reads from the environment of a cluster's processes, set before Ray is imported.

Its throughput mode with HAProxy costs 3 ms a request where the defaults cost 25. HAProxy's files and the ports behind
it are this cluster's own, so that several clusters share a machine.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from actors.haproxy import MARK
from services.child_environment import without_settings
from services.config import Settings

SERVE_MODE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # as urgent as the client's processes and the pool's server beside it; Ray's own choice is 15
    "RAY_worker_niceness": "0",
    # a raylet ends itself when its agents are not there by then; Ray's own 30 s are too few on a very busy machine
    "RAY_agent_register_timeout_ms": "120000",
    # this cluster is one machine: Ray's own servers listen on the loopback address alone
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    # five failed checks in a row mean that a node is dead: 5 s when its raylet has died, 20 s when nothing answers
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
}
PROGRAM = "RAY_SERVE_HAPROXY_BINARY_PATH"
RAY_FOLDER = "ray"  # in the cluster's folder, Ray's own
REPLICA_PORTS = 64  # in a row, for the replicas behind HAProxy
FIRST_PORT, LAST_PORT = 20_000, 29_000


def prepared_environment(folder: Path, settings: Settings, connections: int) -> tuple[dict[str, str], socket.socket]:
    """The environment of a cluster of its own whose files are in `folder`, and its guard. HAProxy has as many
    `connections` open at most, with those that it refuses. No setting is in it, as some are secrets.

    A cluster's processes bind their ports seconds later, so its guard port must be held as long as it lives and keeps
    others away: HAProxy and Serve's replicas would share a port with another cluster's, and answer its requests.
    """
    while True:
        places = own_places(folder)
        guard = socket.socket()
        try:
            guard.bind(("0.0.0.0", int(places["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"]) - 1))
        except OSError:
            guard.close()  # another cluster was faster
        else:
            program = str(_front_door(folder, settings))
            return SERVE_MODE | without_settings() | places | {
                "RAY_SERVE_HAPROXY_MAXCONN": str(connections),
                PROGRAM: program,
            }, guard


def _front_door(folder: Path, settings: Settings) -> Path:
    """A program in `folder` that Serve starts as HAProxy: `orca-haproxy` with the address and the files of TLS."""
    program, files = folder / "haproxy", [settings.ssl_certfile, settings.ssl_keyfile or settings.ssl_certfile]
    told = [settings.host or "0.0.0.0", *(map(os.path.abspath, files) if settings.ssl_certfile else ())]
    program.write_text(f'#!/bin/sh\nexec {shlex.join([haproxy(), *told])} -- "$@"\n')
    program.chmod(0o700)
    return program


def haproxy() -> str:
    """The program that `pip` made of `actors.haproxy`."""
    return str(Path(sys.executable).with_name("orca-haproxy"))


def mark_of(folder: Path) -> str:
    """The entry `NAME=VALUE` in the environment of every process of the cluster with its files in `folder`."""
    return f"{MARK}={folder / 'haproxy.cfg'}"


def own_places(folder: Path) -> dict[str, str]:
    """Variables that give a cluster HAProxy files in `folder` and ports that are free now.

    The port before those of the replicas is the guard: nobody uses it, but who holds it holds them all.
    """
    first = free_ports(1 + REPLICA_PORTS + 3) + 1
    stats, metrics, fallback = range(first + REPLICA_PORTS, first + REPLICA_PORTS + 3)
    return {
        MARK: mark_of(folder).partition("=")[2],
        PROGRAM: haproxy(),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + REPLICA_PORTS - 1),
    }


def free_ports(count: int, low: int = FIRST_PORT, high: int = LAST_PORT) -> int:
    """The first of `count` ports in a row that are free now. Starts at a place of this process's own."""
    places = range(low, high, count)
    start = os.getpid() % len(places)
    first: int
    for first in (*places[start:], *places[:start]):
        if _all_free(first, count):
            return first
    raise OSError(f"no {count} free ports in a row between {low} and {high}")


def _all_free(first: int, count: int) -> bool:
    with ExitStack() as stack:
        for port in range(first, first + count):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return False
    return True
