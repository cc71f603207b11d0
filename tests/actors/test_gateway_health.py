"""How Serve learns of a gateway's death: a call of it that is under way fails at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import gateway
from actors.app import COMMON


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gateway, "listen_on_node_address", lambda: None)  # it changes Serve in this process
    ours, *_ = gateway.GatewayReplica.__bases__  # Serve's part builds the application
    return ours({"redis_url": "redis://nowhere"}, None)


async def test_the_first_health_check_is_answered_at_once_and_each_later_one_is_under_way(replica: Any) -> None:
    await replica.check_health()
    later = asyncio.create_task(replica.check_health())
    await asyncio.sleep(0.1)
    assert not later.done()
    later.cancel()


def test_serve_gives_a_late_answer_enough_time() -> None:
    assert COMMON["health_check_timeout_s"] / 2 >= gateway.LATE
    assert COMMON["health_check_period_s"] < gateway.LATE
