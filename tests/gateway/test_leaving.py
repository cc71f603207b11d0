"""A request that nobody follows any more is left, whatever goes wrong at first."""

from __future__ import annotations

import asyncio

import pytest

from gateway import leaving
from gateway.leaving import Leaving
from services.messages import NewSequence, Submission
from services.pool.pool import RequestPool
from services.requests import SamplingParams


async def test_a_fault_does_not_leave_an_unwanted_request_running(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "PAUSE", 0.01)
    await pool.submit(Submission("r", "g", [NewSequence("r/0", [1], SamplingParams(5))]))
    unlisten, faults = pool.unlisten, 2

    async def faulty(gateway: str, request: str) -> None:
        nonlocal faults
        if faults:
            faults -= 1
            raise RuntimeError("a fault")
        await unlisten(gateway, request)

    monkeypatch.setattr(pool, "unlisten", faulty)
    Leaving(pool, "g", lambda _: False).leave("r")
    async with asyncio.timeout(20):
        while (group := await pool.group("r")) is not None and not group.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
