"""An engine whose owners are gone ends, and frees its node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray
from engine_seats import SETTINGS, WAIT, status_of

from actors.placement import engine_names, ensure_engine, find_engine

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]


async def test_an_engine_without_an_owner_ends_and_removes_its_placement_group() -> None:
    def hurry(_: Any) -> None:
        import actors.engine

        actors.engine.ORPHANED_AFTER = 1

    (name, _) = engine_names(0)
    await asyncio.to_thread(ensure_engine, SETTINGS, 0)
    await status_of(name)
    actor = find_engine(name)
    assert actor is not None
    await actor.__ray_call__.remote(hurry)
    async with asyncio.timeout(WAIT):
        while find_engine(name) or _groups() != {"REMOVED"}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _groups() -> set[str]:
    return {group["state"] for group in ray.util.placement_group_table().values()}
