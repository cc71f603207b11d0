"""The bar of a start is drawn while a step lasts, also if nothing else is printed."""

from __future__ import annotations

import asyncio

import pytest

from cli import steps
from cli.steps import Steps


async def test_a_long_step_has_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "INTERVAL", 0.01)
    said: list[str] = []
    async with Steps(4, "preparing the model", said.append) as bar:
        bar.next("starting the pool")
        while len(said) < 3:  # noqa: ASYNC110 - a line sets no event
            await asyncio.sleep(0.01)
        bar.end()
        bar.next("loading an engine")  # as when a cluster is started again
    assert all(line.startswith("starting the pool: 1 of 4 steps (25%), ") for line in said), said
    assert said[-1].endswith(" left")
