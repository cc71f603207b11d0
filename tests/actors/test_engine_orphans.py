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


async def test_processes_without_an_owner_end_and_their_placement_group_is_removed() -> None:
    def hurry(_: Any) -> None:
        import actors.engine

        actors.engine.ORPHANED_AFTER = 1

    names = engine_names("0")
    for which, name in enumerate(names):
        await asyncio.to_thread(ensure_engine, SETTINGS, 0, 0, which)
        await status_of(name)
    actors = [find_engine(name) for name in names]
    await asyncio.gather(*(actor.__ray_call__.remote(hurry) for actor in actors if actor))
    async with asyncio.timeout(WAIT):
        while any(map(find_engine, names)) or _groups() != {"REMOVED"}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _groups() -> set[str]:
    return {group["state"] for group in ray.util.placement_group_table().values()}
