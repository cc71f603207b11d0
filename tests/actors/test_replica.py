"""The pool that replicas open has the limits of the settings."""

from __future__ import annotations

from actors.replica import limits_of, open_pool
from services.models import ModelInfo
from services.pool.limits import Bounds, Limits
from services.pool.pool import LAYOUT
from services.settings.settings import Settings

MODEL = ModelInfo("tiny", "rev1", "LlamaForCausalLM", 512, 1000, frozenset())


async def test_its_bounds_and_its_order_are_those_of_the_settings() -> None:
    asked = {"max_waiting": 7, "keep_ended": 8, "grace": 9, "order": "priority", "ageing": 10, "ttft_target": 11}
    asked |= {"max_waiting_tokens": 12, "max_streams": 13, "max_stored": 14, "max_queue_wait": 15}
    pool = open_pool(Settings(redis_url="redis://nowhere", wait_replicas=2, max_pool_bytes=1 << 21, **asked), MODEL)
    assert pool._server.wait_replicas == 2
    assert pool.limits == Limits(max_bytes=1 << 21, **asked)
    assert pool.name == f"default.{LAYOUT}.rev1"
    await pool.close()


def test_a_tenant_has_a_share_if_there_are_several() -> None:
    named = {"a": {"max_waiting": 20, "max_pool_bytes": 1 << 20}}
    settings = Settings(api_key="1", api_keys={"2": "a"}, max_waiting=30, max_pool_bytes=1 << 24, tenant_limits=named)
    limits = limits_of(settings)
    assert (limits.bounds_of("default").waiting, limits.bounds_of("default").bytes) == (15, 1 << 23)
    assert (limits.bounds_of("a").waiting, limits.bounds_of("a").bytes) == (20, 1 << 20)
    alone = limits_of(settings.model_copy(update={"api_keys": {"2": "default"}}))
    assert alone.bounds_of("default") == Bounds()
