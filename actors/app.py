"""The Serve application: the gateway as its ingress, the scheduler as a second deployment beside it."""

from __future__ import annotations

from typing import Any

from ray import serve

from actors.connections import IDLE, streams
from actors.gateway import GatewayReplica
from actors.scheduler import SchedulerReplica
from services.errors import SettingsError
from services.models.pin import pin_commit
from services.settings import exposure
from services.settings.secret_files import POOL
from services.settings.sources import load

# Serve's own default is 10 s between looks at a replica's health
COMMON: dict[str, Any] = {
    "ray_actor_options": {"num_cpus": 0},
    "health_check_period_s": 1.0,
    "health_check_timeout_s": 10.0,
    "graceful_shutdown_wait_loop_s": 0.1,
}
COMMIT_TIME = 2.0  # seconds a replica may take beside the drain: an iteration to finish, a seat to hand back


def build(args: dict[str, Any]) -> serve.Application:
    """What `serve deploy` and `orca serve` run; `args` are settings by name.

    Raises SettingsError for one that is unknown or contradictory, without a `redis_url`, and where anybody could use
    the server.
    """
    settings = load(**args)
    if not settings.redis_url:
        raise SettingsError("redis_url: the cluster's processes share a pool, say where its server is")
    if "@" in args.get("redis_url", ""):
        raise SettingsError("redis_url: Serve shows its args; use ORCA_REDIS_URL or redis_url_file for a password")
    exposure.check(settings)
    # each process has the pool's URL from its own environment, unless `args` say where it is
    where = {name: args[name] for name in POOL if name in args} | {"model": pin_commit(settings.model)}
    keyless, guarded = (_but_pool(v) | where for v in (settings.without_secrets(), settings.with_key_hashes()))
    common = COMMON | {"graceful_shutdown_timeout_s": settings.drain_timeout + COMMIT_TIME}
    # one more than seats: a spare, with everything imported, takes over in a fraction of a second
    scheduler: Any = serve.deployment(SchedulerReplica, name="scheduler", num_replicas=settings.engines + 1, **common)
    gateway: Any = serve.deployment(
        GatewayReplica,
        name="gateway",
        num_replicas=settings.gateways,
        max_ongoing_requests=streams(settings) + IDLE,  # Serve's own default is 5
        **common,
    )
    application: serve.Application = gateway.bind(guarded, scheduler.bind(keyless))
    return application


def _but_pool(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in POOL}
