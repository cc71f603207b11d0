"""The environment of a cluster's processes, from which Ray Serve reads its options when it is imported.

Serve's throughput mode with HAProxy costs 3 ms per request, its defaults cost 25. Each cluster has its own HAProxy
files and its own ports behind HAProxy, so that several clusters can share a machine.
"""

from __future__ import annotations

import os
import shlex
import socket
import sysconfig
from contextlib import ExitStack
from pathlib import Path

from actors.haproxy import BINARY_PATH, MARK
from services.child_environment import without_settings
from services.settings.settings import Settings

SERVE_MODE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # the same priority as the clients and the pool's server on this machine; Ray's default is 15
    "RAY_worker_niceness": "0",
    # a raylet's agents have a pipe to it as their input (see `Head`); nothing collects Ray's own metrics
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_enable_metrics_collection": "0",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "60000",
    # nor its records of tasks and of events in its loops, which the dashboard and Ray's own logs would show
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    # the kernel ends what takes too much memory, and counts that; Ray's own monitor would look four times a second
    "RAY_memory_monitor_refresh_ms": "0",
    # the raylet looks for its object store every 0.05 s, for 10 s; the default is every 1 s, and once is too early
    "RAY_raylet_client_connect_timeout_milliseconds": "50",
    "RAY_raylet_client_num_connect_attempts": "200",
    # the cluster is one machine, so Ray's own servers listen on the loopback address only
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0.5",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    # Serve kills a proxy that is not ready after three times this long, and `serve.start`, which waits for 60 s, fails
    # with it. The default of 5 s is too short for a busy machine. A proxy that dies is noticed at once
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
    # five failed checks in a row mean that a node is dead: 5 s when its raylet has died, 20 s when nothing answers
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
}
RAY_FOLDER = "ray"  # Ray's files, inside the cluster's folder
GCS_FOLDER = "gcs"  # what Ray's head knows of its cluster, in the same folder, so that it may be restarted
REPLICA_PORTS = 64  # consecutive ports for the replicas behind HAProxy
FIRST_PORT, LAST_PORT = 20_000, 29_000


def prepared_environment(folder: Path, settings: Settings, connections: int) -> tuple[dict[str, str], socket.socket]:
    """The environment of a cluster with its files in `folder`, and the socket that guards its ports.

    `connections` is the most that HAProxy opens, including those that it refuses. The environment contains no setting
    of ours, since some are secrets.

    A cluster's processes bind their ports seconds later. The caller must hold the guard socket as long as the cluster
    lives: without it, HAProxy or a replica of another cluster could share a port with this one and answer its requests.
    """
    while True:
        places = haproxy_environment(folder)
        guard = socket.socket()
        try:
            guard.bind(("0.0.0.0", int(places["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"]) - 1))
        except OSError:
            guard.close()  # another cluster has taken these ports
        else:
            program = str(_write_program(folder, settings))
            return SERVE_MODE | _outside_ray() | places | {
                "RAY_gcs_storage": "rocksdb",
                "RAY_gcs_storage_path": str(folder / GCS_FOLDER),
                "RAY_SERVE_HAPROXY_MAXCONN": str(connections),
                BINARY_PATH: program,
            }, guard


def _outside_ray() -> dict[str, str]:
    """The environment of this process without variables for another Ray, such as the address of its store or a hook:
    this cluster is its own."""
    return {name: value for name, value in without_settings().items() if not name.startswith("RAY_")}


def _write_program(folder: Path, settings: Settings) -> Path:
    """Write the script that Serve starts as HAProxy: `orca-haproxy` with the address and the TLS files."""
    program, files = folder / "haproxy", [settings.ssl_certfile, settings.ssl_keyfile or settings.ssl_certfile]
    arguments = [settings.host or "0.0.0.0", *(map(os.path.abspath, files) if settings.ssl_certfile else ())]
    program.write_text(f'#!/bin/sh\nexec {shlex.join([haproxy_program(), *arguments])} -- "$@"\n')
    program.chmod(0o700)
    return program


def haproxy_program() -> str:
    """The path of the console script `orca-haproxy`, which pip need not install beside the interpreter."""
    return str(Path(sysconfig.get_path("scripts"), "orca-haproxy"))


def mark_of(folder: Path) -> str:
    """The entry `NAME=VALUE` that is in the environment of every process of the cluster with its files in `folder`."""
    return f"{MARK}={folder / 'haproxy.cfg'}"


def haproxy_environment(folder: Path) -> dict[str, str]:
    """Variables that give a cluster its own HAProxy files in `folder` and ports that are free now.

    The port before those of the replicas is the guard: no process serves on it, and the cluster that holds it has all
    the ports after it.
    """
    first = free_ports(1 + REPLICA_PORTS + 3) + 1
    stats, metrics, fallback = range(first + REPLICA_PORTS, first + REPLICA_PORTS + 3)
    return {
        MARK: mark_of(folder).partition("=")[2],
        BINARY_PATH: haproxy_program(),
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
    """The first of `count` consecutive ports that are free now. Where the search starts depends on the process id."""
    candidates = range(low, high, count)
    start = os.getpid() % len(candidates)
    first: int
    for first in (*candidates[start:], *candidates[:start]):
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
