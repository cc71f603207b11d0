"""Head: Ray's head with only the processes that a server uses: GCS and raylet.

`ray.init` starts five Python processes more, for which a server has no use. They take seconds to start, and poll for as
long as the server runs: the dashboard's server (without a dashboard it collects statistics of usage), the autoscaler's
monitor (there is one machine), the log monitor (it copies the logs of workers to a driver that prints them), the
dashboard's agent (it exports Ray's metrics and answers the dashboard), and the agent that installs runtime environments
(no actor has one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray import _raylet
from ray._private import node, services

AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
STAND_IN = 'sh -c "exec cat >/dev/null"'
"""The raylet ends if one of its agents does, and does not start without. This one ends when the raylet closes the pipe
that is its input, for which `RAY_enable_pipe_based_agent_to_parent_health_check` must be set."""
NO_PORT = 1  # a privileged port, on which nothing of this user listens
PORTS = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")  # of the agents


class Head(node.Node):
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

        def changed(command: Sequence[str], *further: Any, **more: Any) -> Any:
            own = [part for part in command if not part.startswith(AGENTS)]
            assert len(own) == len(command) - len(AGENTS), f"the raylet's command names its agents otherwise: {command}"
            return start([*own, *(f"{agent}={STAND_IN}" for agent in AGENTS)], *further, **more)

        services.start_ray_process = changed
        try:
            super().start_raylet(*arguments, **options)
        finally:
            services.start_ray_process = start


def use_small_head() -> None:
    """Make `ray.init` of this process start a `Head`. Ray has no option for any of it."""
    vars(node)["Node"] = Head
