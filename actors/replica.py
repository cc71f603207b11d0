"""What the replicas of gateways and schedulers have in common: the model and the pool."""

from __future__ import annotations

import logging
from pathlib import Path

from actors.engine_build import replaced_of
from services.engine.settings import PROCESSES
from services.errors import SettingsError
from services.models import ModelInfo
from services.models.pin import pinned_info
from services.models.quantization import check_quantization
from services.models.replaced import resolve_replaced, with_replaced
from services.models.weights_size import weights_size
from services.pool.limits import Bounds, Limits
from services.pool.pool import LAYOUT, RequestPool
from services.pool.shards import PoolShard
from services.settings.device import expects_gpu
from services.settings.settings import Settings
from services.settings.tenants import TenantLimits

GIB = 1 << 30

log = logging.getLogger(__name__)


def find_model(settings: Settings) -> tuple[Path, ModelInfo]:
    """The folder of the model, and its description under the pinned revision. Raises ModelError, SettingsError."""
    replaced = replaced_of(settings)
    folder = resolve_replaced(settings.model, replaced, settings.cache_dir, log.info)
    check_quantization(settings.quantization, settings.model, folder)
    check_memory(settings, folder)
    info = pinned_info(settings.model, folder, settings.cache_dir)
    return folder, with_replaced(info, folder, replaced)


def check_memory(settings: Settings, folder: Path) -> None:
    """Raise SettingsError if an engine of the model in `folder` does not even fit alone into the memory that the
    settings give. Its engine knows better what it needs, and refuses it later if it is only a little too large."""
    if not settings.memory or settings.null_engine or expects_gpu(settings):
        return
    width = {"float32": 4}.get(settings.dtype, 2) if settings.weights != "int8" else 1
    weights, processes = weights_size(folder, width), settings.tp * settings.pp * PROCESSES
    if weights + processes > settings.memory:
        raise SettingsError(
            f"memory={settings.memory / GIB:.2f} GiB: an engine of {settings.model} takes at least "
            f"{(weights + processes) / GIB:.2f} GiB alone, {weights / GIB:.2f} for weights and "
            f"{processes / GIB:.2f} for processes; raise memory, or use a smaller model or weights=int8"
        )


def open_shards(settings: Settings, model: ModelInfo) -> list[PoolShard]:
    """The pools of these settings, not connected yet.

    A pool serves one model, so its name contains the model's revision: neither a server that is started again with
    another model nor a second one on the same pool server runs the other's requests. The name also contains the
    version of the key layout, since a build with another layout could not read the keys, and the number of the shard,
    so that shards may share a server and, in Redis Cluster, have slots of their own.
    """
    name, limits = pool_name(settings, model), limits_of(settings)
    names = {shard.number: f"{name}.{shard.number}" if shard.number else name for shard in settings.shards}
    return [
        PoolShard(
            RequestPool(shard.url, names[shard.number], limits, settings.wait_replicas), shard.number, shard.state
        )
        for shard in settings.shards
    ]


def pool_name(settings: Settings, model: ModelInfo) -> str:
    """The name of the pool of these settings, or of their shard 0."""
    return f"{settings.pool}.{LAYOUT}.{'null' if settings.null_engine else model.revision}"


def limits_of(settings: Settings) -> Limits:
    """The bounds of a pool. A larger `max_waiting` than the default raises in proportion those that belong to it."""
    constants = settings.constants
    raised = max(1.0, settings.max_waiting / Settings.model_fields["max_waiting"].default)
    return Limits(
        max_waiting=settings.max_waiting,
        max_bytes=settings.max_pool_bytes,
        max_waiting_tokens=int(constants.max_waiting_tokens * raised),
        max_streams=int(constants.max_streams * raised),
        max_stored=constants.max_stored,
        max_queue_wait=settings.max_queue_wait,
        tenant_share=constants.tenant_share if settings.several_tenants else 1.0,
        tenants={name: _bounds(own) for name, own in settings.tenant_limits.items()},
        keep_ended=constants.keep_ended,
        grace=constants.grace,
        order=settings.order,
        ageing=constants.ageing,
        ttft_target=constants.ttft_target,
    )


def _bounds(own: TenantLimits) -> Bounds:
    return Bounds(own.max_waiting, own.max_waiting_tokens, own.max_streams, own.max_pool_bytes, own.max_stored)
