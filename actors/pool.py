"""The pool that a cluster's processes share."""

from __future__ import annotations

from services.config import Settings
from services.models import ModelInfo
from services.pool.limits import Limits
from services.pool.pool import RequestPool


def open_pool(settings: Settings, model: ModelInfo) -> RequestPool:
    """The pool of these settings, not connected yet.

    A pool serves one model, so its name in the server holds the model's revision: a server that is started again with
    another model, or two that share a pool server, never run each other's requests.
    """
    kind = "null" if settings.null_engine else model.revision
    return RequestPool(settings.redis_url.get_secret_value(), f"{settings.pool}.{kind}", limits_of(settings))


def limits_of(settings: Settings) -> Limits:
    return Limits(
        max_waiting=settings.max_waiting,
        max_bytes=settings.max_pool_bytes,
        keep_ended=settings.keep_ended,
        grace=settings.grace,
        order=settings.order,
        ageing=settings.ageing,
        ttft_target=settings.ttft_target,
    )
