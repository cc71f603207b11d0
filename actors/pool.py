"""The pool that a cluster's processes share."""

from __future__ import annotations

from services.models import ModelInfo
from services.pool.limits import Bounds, Limits
from services.pool.pool import LAYOUT, RequestPool
from services.settings.settings import Settings
from services.settings.tenants import TenantLimits


def open_pool(settings: Settings, model: ModelInfo) -> RequestPool:
    """The pool of these settings, not connected yet.

    A pool serves one model, so its name in the server holds the model's revision: a server that is started again with
    another model, or two that share a pool server, never run each other's requests. It also holds the number of the
    layout of keys: a build that lays them out otherwise could not read what another has left.
    """
    kind = "null" if settings.null_engine else model.revision
    return RequestPool(settings.redis_url.get_secret_value(), f"{settings.pool}.{LAYOUT}.{kind}", limits_of(settings))


def limits_of(settings: Settings) -> Limits:
    return Limits(
        max_waiting=settings.max_waiting,
        max_bytes=settings.max_pool_bytes,
        max_waiting_tokens=settings.max_waiting_tokens,
        max_streams=settings.max_streams,
        max_stored=settings.max_stored,
        max_queue_wait=settings.max_queue_wait,
        tenant_share=settings.tenant_share if settings.several_tenants else 1.0,
        tenants={name: _bounds(own) for name, own in settings.tenant_limits.items()},
        keep_ended=settings.keep_ended,
        grace=settings.grace,
        order=settings.order,
        ageing=settings.ageing,
        ttft_target=settings.ttft_target,
    )


def _bounds(own: TenantLimits) -> Bounds:
    return Bounds(own.max_waiting, own.max_waiting_tokens, own.max_streams, own.max_pool_bytes, own.max_stored)
