"""A request that nobody follows any more is abandoned, also if detaching fails at first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.pool_client import following
from gateway.pool_client.following import AbandonedRequests
from services.messages import NewSequence, Submission
from services.pool.pool import RequestPool
from services.requests import SamplingParams


async def test_an_error_does_not_leave_an_abandoned_request_running(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE", 0.01)
    await pool.submit(Submission("r", "g", [NewSequence("r/0", [1], SamplingParams(5))]))
    unlisten, faults = pool.unlisten, 2

    async def faulty(gateway: str, request: str) -> None:
        nonlocal faults
        if faults:
            faults -= 1
            raise RuntimeError("a fault")
        await unlisten(gateway, request)

    monkeypatch.setattr(pool, "unlisten", faulty)
    AbandonedRequests(pool, "g", lambda _: False).add("r")
    async with asyncio.timeout(20):
        while (group := await pool.group("r")) is not None and not group.ended:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
