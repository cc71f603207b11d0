"""The pool that replicas open has the limits of the settings, and gateways join only those whom they may join."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.gateway import GatewayReplica
from actors.replica import find_model, limits_of, open_shards
from services.errors import SettingsError
from services.joined import described
from services.models import ModelInfo
from services.pool.limits import Bounds, Limits
from services.pool.pool import LAYOUT
from services.settings.settings import Settings
from services.text import TextTables

MODEL = ModelInfo("tiny", "rev1", "LlamaForCausalLM", 512, 1000, frozenset())


async def test_its_bounds_and_its_order_are_those_of_the_settings() -> None:
    asked = {"max_waiting": 7, "order": "priority", "max_queue_wait": 15}
    constants = {"keep_ended": 8, "grace": 9, "ageing": 10, "ttft_target": 11}
    constants |= {"max_waiting_tokens": 12, "max_streams": 13, "max_stored": 14}
    settings = Settings(
        redis_url="redis://nowhere", wait_replicas=2, max_pool_bytes=1 << 21, constants=constants, **asked
    )
    (shard,) = open_shards(settings, MODEL)
    pool = shard.pool
    assert pool._server.wait_replicas == 2
    assert pool.limits == Limits(max_bytes=1 << 21, **asked, **constants)
    assert pool.name == f"default.{LAYOUT}.rev1"
    await pool.close()


def test_a_longer_queue_has_room_for_its_prompts_and_streams() -> None:
    default, longer = limits_of(Settings()), limits_of(Settings(max_waiting=40_000))
    assert (longer.max_waiting_tokens, longer.max_streams) == (4 * default.max_waiting_tokens, 4 * default.max_streams)
    shorter = limits_of(Settings(max_waiting=5))
    assert (shorter.max_waiting_tokens, shorter.max_streams) == (default.max_waiting_tokens, default.max_streams)


def test_a_tenant_has_a_share_if_there_are_several() -> None:
    named = {"a": {"max_waiting": 20, "max_pool_bytes": 1 << 20}}
    settings = Settings(api_key="1", api_keys={"2": "a"}, max_waiting=30, max_pool_bytes=1 << 24, tenant_limits=named)
    limits = limits_of(settings)
    assert (limits.bounds_of("default").waiting, limits.bounds_of("default").bytes) == (15, 1 << 23)
    assert (limits.bounds_of("a").waiting, limits.bounds_of("a").bytes) == (20, 1 << 20)
    alone = limits_of(settings.model_copy(update={"api_keys": {"2": "default"}}))
    assert alone.bounds_of("default") == Bounds()


async def test_each_shard_has_a_pool_of_its_own() -> None:
    """The name of shard 0's pool is that of the only pool of a server without shards."""
    url = "0=redis://a 7:draining=redis://b"
    shards = open_shards(Settings(redis_url=url, engines=2, pool="x" * 48), MODEL)
    name = f"{'x' * 48}.{LAYOUT}.rev1"
    assert [(s.number, s.state, s.pool.name) for s in shards] == [(0, "serving", name), (7, "draining", f"{name}.7")]
    for shard in shards:
        await shard.pool.close()


async def test_a_gateway_compares_itself_with_the_others_of_its_pool(default_model: Path, pool_url: str) -> None:
    """So `serve deploy` refuses what `orca serve` refuses, and Serve's status says why."""
    settings = Settings(redis_url=pool_url, pool="joined", port=8001)
    shards = open_shards(settings, find_model(settings)[1])
    keyed = settings.model_copy(update={"port": 8000, "api_key": ("secret",)})
    for shard in shards:
        await shard.pool.heartbeat("other", 1, {}, settings=described(keyed, TextTables.load(default_model)))
        await shard.pool.close()
    replica: Any = SimpleNamespace(_settings=settings)  # its constructor is for a process of Serve
    with pytest.raises(SettingsError, match="8000 serves the same pool and requires API keys"):
        await GatewayReplica.__serve_build_asgi_app__(replica)
