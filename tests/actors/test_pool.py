"""The pool of a cluster has what its settings say."""

from __future__ import annotations

from actors.pool import open_pool
from services.config import Settings
from services.models import ModelInfo
from services.pool.limits import Limits

MODEL = ModelInfo("tiny", "rev1", "LlamaForCausalLM", 512, 1000, frozenset())


async def test_its_bounds_and_its_order_are_the_settings() -> None:
    asked = {"max_waiting": 7, "keep_ended": 8, "grace": 9, "order": "priority", "ageing": 10, "ttft_target": 11}
    pool = open_pool(Settings(redis_url="redis://nowhere", max_pool_bytes=1 << 21, **asked), MODEL)
    assert pool.limits == Limits(max_bytes=1 << 21, **asked)
    assert pool.name == "default.rev1"
    await pool.close()
