"""All that Orca uses of Ray's private code. Each part says what it gives and what Ray's public interface has instead.

`actors/haproxy.py` and the variables of `actors/cluster/environment.py` depend on Ray's version in the same way.
`tests/actors/test_ray_private.py` names what another version of Ray has moved.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray import _raylet
from ray._private import node, ray_constants, services, worker

VERSION = "2.60.0"  # of Ray, with which all of this was tried

AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
STAND_IN = 'sh -c "exec cat >/dev/null"'
"""The raylet ends if one of its agents does, and does not start without. This one ends when the raylet closes the pipe
that is its input, for which `RAY_enable_pipe_based_agent_to_parent_health_check` must be set."""
NO_PORT = 1  # a privileged port, on which nothing of this user listens
PORTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")  # of the agents

CONTROL_LOOP = 0.25  # seconds between two steps of Serve's control loop once the server runs

SETTLED = 5.0  # seconds; a process that dies sooner after its start has a lasting reason

log = logging.getLogger(__name__)


class Head(node.Node):
    """Ray's head with only the processes that a server uses: GCS and raylet.

    `ray.init` and `ray start --head` start five Python processes more, for which a server has no use: the dashboard's
    server (without a dashboard it collects statistics of usage), the autoscaler's monitor (there is one machine), the
    log monitor (it copies the logs of workers to a driver that prints them), the dashboard's agent (it exports Ray's
    metrics and answers the dashboard), and the agent that installs runtime environments (no actor has one). They take
    seconds of a processor to start, hold memory, and poll for as long as the server runs. Ray has no option that leaves
    out more than the monitors.
    """

    def __init__(self, ray_params: Any, *arguments: Any, **options: Any) -> None:
        ray_params.update(no_monitor=True, include_log_monitor=False)
        super().__init__(ray_params, *arguments, **options)

    def start_api_server(self, **_: Any) -> None:
        """Start no dashboard."""

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        ray_core = vars(_raylet)  # it has no stubs
        for name in PORTS:  # the raylet waits for the files in which its agents report their ports
            ray_core["persist_port"](self._session_dir, self._node_id, ray_core[f"{name}_PORT_NAME"], NO_PORT)
        start = services.start_ray_process

        def start_without_agents(command: Sequence[str], *further: Any, **more: Any) -> Any:
            own = [part for part in command if not part.startswith(AGENTS)]
            assert len(own) == len(command) - len(AGENTS), f"the raylet's command names its agents otherwise: {command}"
            return start([*own, *(f"{agent}={STAND_IN}" for agent in AGENTS)], *further, **more)

        services.start_ray_process = start_without_agents
        try:
            super().start_raylet(*arguments, **options)
        finally:
            services.start_ray_process = start


def keep_gcs(stopping: threading.Event) -> None:
    """Start the GCS of this process's head again whenever it dies, until the event is set.

    All others connect again to its port, and it reads its state from `RAY_gcs_storage_path`. Ray itself restarts no
    process of its head.

    Raises RuntimeError if the GCS dies soon after a start, since it would do so again.
    """
    head: Any = worker._global_node
    while True:
        began = time.monotonic()
        head.all_processes[ray_constants.PROCESS_TYPE_GCS_SERVER][0].process.wait()
        if stopping.is_set():
            return
        if (age := time.monotonic() - began) < SETTLED:
            raise RuntimeError(f"Ray's gcs_server died {age:.1f} s after its start")
        log.warning("Ray's gcs_server died; starting it again")
        head.kill_gcs_server(check_alive=False)
        head.start_gcs_server()


def use_small_head() -> None:
    """Make `ray.init` of this process start a `Head`."""
    vars(node)["Node"] = Head


def listen_on_node_address() -> None:
    """Bind the port for calls between deployments on the node's own address instead of all addresses of the machine.

    Call it in the constructor of a replica: Serve opens the port afterwards, and has no setting for its address. With
    Ray's token, a caller must present the token first. Without it, any caller can send the port a pickle. Other nodes
    call a replica by its node's address, which is the loopback address under `orca serve`.
    """
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    address = ray.util.get_node_ip_address()

    def add_port(server: Any, _: str) -> int:
        return int(add_port_to_grpc_server(server, f"[{address}]:0" if ":" in address else f"{address}:0"))

    assert "add_port_to_grpc_server" in vars(replica), "Serve opens its port by another function"
    vars(replica)["add_port_to_grpc_server"] = add_port


def slow_control_loop() -> None:
    """Let Serve's controller look at its replicas every `CONTROL_LOOP` seconds instead of ten times a second: each time
    it asks the GCS for all nodes. `RAY_SERVE_CONTROL_LOOP_INTERVAL_S` would delay each step of a start, too. A
    controller that is started again looks ten times a second.
    """
    ray.get(_controller().__ray_call__.remote(_slow_down, CONTROL_LOOP))


def _slow_down(_: Any, seconds: float) -> None:
    from ray.serve._private import controller

    assert "CONTROL_LOOP_INTERVAL_S" in vars(controller), "Serve's controller waits by another name"
    vars(controller)["CONTROL_LOOP_INTERVAL_S"] = seconds


def set_replicas(application: str, deployment: str, number: int) -> bool:
    """Let Serve run this number of replicas of a deployment. It starts or stops some; the others are not touched.

    Returns False if the application's config does not allow it, as with Serve's autoscaling. Serve's REST API makes
    this call too, but is a part of the dashboard, which `orca serve` does not start. `serve.run` would replace all
    replicas.
    """
    from ray.serve._private.common import DeploymentID
    from ray.serve._private.exceptions import ExternalScalerDisabledError

    try:
        ray.get(_controller().update_deployment_replicas.remote(DeploymentID(deployment, application), number))
    except ExternalScalerDisabledError:
        return False
    return True


def _controller() -> Any:
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    return ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
