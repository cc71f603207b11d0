"""The Serve application: the gateway is its ingress, the scheduler is a second deployment beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from actors.front_door import IDLE_CONNECTIONS, max_requests
from actors.gateway import GatewayReplica
from actors.scaling import gateway_scaling, scheduler_scaling
from actors.scheduler import SchedulerReplica
from services.errors import SettingsError
from services.models.pin import pin_commit
from services.settings import exposure
from services.settings.gone import without_gone
from services.settings.settings import Settings
from services.settings.sources import load
from services.tracing.tracer import check_tracing

# Serve's default for `health_check_period_s` is 10 s
COMMON: dict[str, Any] = {
    "ray_actor_options": {"num_cpus": 0},
    "health_check_period_s": 1.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_wait_loop_s": 0.1,
}
COMMIT_TIME = 2.0  # seconds beyond the drain that a replica may take to finish an iteration and release its seat


def replicas(settings: Settings) -> dict[str, int]:
    """The replicas of each deployment. There is one scheduler more than seats: the spare has imported everything and
    takes over in a fraction of a second."""
    return {"gateway": settings.gateways, "scheduler": fewest_replicas(settings)["scheduler"] + 1}


def fewest_replicas(settings: Settings) -> dict[str, int]:
    """The replicas without which a server is not ready. The others can start when it is."""
    return {"gateway": 1, "scheduler": sum(each.engines for each in settings.each)}


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application that `serve deploy` runs; `args` are settings by name. Raises as `application` does."""
    return application(args, replicas)


def application(args: dict[str, Any], count: Callable[[Settings], dict[str, int]]) -> serve.Application:
    """Build the application with `count` replicas of each deployment; `args` are settings by name.

    Raises SettingsError for a setting that is unknown or contradictory, for a missing `redis_url`, and for a server
    that other machines could use without an API key.
    """
    args = without_gone(args)
    settings = load(**args)
    if not settings.shards:
        raise SettingsError("redis_url: the processes of a cluster share a pool; set the URL of its server")
    if re.search("://.*@", args.get("redis_url", "")):
        raise SettingsError("redis_url: Serve shows its args; for a password, use ORCA_REDIS_URL or the name of a file")
    exposure.check(settings)
    check_tracing(settings.otlp_traces_endpoint)
    # each process reads the pool's URL from its own environment, unless `args` have it
    shared = {name: args[name] for name in ("redis_url",) if name in args}
    settings = settings.pinned(pin_commit)
    scheduler_values = _without_pool(settings.without_secrets()) | shared
    gateway_values = _without_pool(settings.with_key_hashes()) | shared
    common = COMMON | {
        "graceful_shutdown_timeout_s": settings.drain_timeout + COMMIT_TIME,
        "logging_config": serve_logs(settings),
    }
    first = count(settings)
    scaled = any(each.max_engines for each in settings.each)
    schedulers = scheduler_scaling(settings, scheduler_values) if scaled else first["scheduler"]
    gateways = gateway_scaling(settings) if settings.max_gateways else first["gateway"]
    scheduler: Any = serve.deployment(
        SchedulerReplica,
        name="scheduler",
        **_number(schedulers),
        user_config={"engines": _engines(settings)},  # Serve tells running replicas of another number
        **common,
    )
    gateway: Any = serve.deployment(
        GatewayReplica,
        name="gateway",
        **_number(gateways),
        max_ongoing_requests=max_requests(settings) + IDLE_CONNECTIONS,  # Serve's default is 5
        **common,
    )
    bound: serve.Application = gateway.bind(gateway_values, scheduler.bind(scheduler_values))
    return bound


def _engines(settings: Settings) -> int | list[int]:
    """The engines of the model, or of each of several."""
    engines = [each.engines for each in settings.each]
    return engines if len(engines) > 1 else engines[0]


def _number(replicas: int | AutoscalingConfig) -> dict[str, Any]:
    return {"num_replicas" if isinstance(replicas, int) else "autoscaling_config": replicas}


def serve_logs(settings: Settings) -> LoggingConfig:
    """How Serve writes its own messages."""
    encoding = "JSON" if settings.log_format == "json" else "TEXT"
    return LoggingConfig(encoding=encoding, log_level=settings.log_level.upper())


def _without_pool(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "redis_url"}
