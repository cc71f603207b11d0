"""The models whose seats a scheduler takes: they follow the list in the pool's server."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tiny_models import make_tiny_model

from actors import scheduler
from actors.scheduler import SchedulerModel, SchedulerReplica
from actors.seat import Seat
from services.model_list import ModelList
from services.settings.models import Entry, own_entry
from services.settings.settings import Settings

CLUSTER = "c"
_numbers = itertools.count()


class Scheduler:
    """A scheduler without a process of Serve's, and the list that it follows."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.listing = settings, ModelList(settings)
        self.replica = SchedulerReplica(settings.without_secrets() | {"redis_url": settings.redis_url})
        self.replica.reconfigure({"engines": settings.engines})

    def entry(self, folder: Path, **own: Any) -> Entry:
        return own_entry(self.settings.of_server(), {"model": str(folder), "pool": self.settings.pool} | own, Settings)

    async def look(self) -> None:
        await self.replica._update(await self.listing.read(), CLUSTER)

    @property
    def models(self) -> list[SchedulerModel]:
        return self.replica._models

    async def close(self) -> None:
        await self.listing.close()
        for pool in self.replica._pools:
            await pool.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture
async def made(default_model: Path, pool_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scheduler]:
    async def nothing(_: SchedulerReplica) -> None: ...

    monkeypatch.setattr(scheduler, "listen_on_node_address", lambda: None)
    monkeypatch.setattr(SchedulerReplica, "_live", nothing)  # it needs Ray
    made = Scheduler(Settings(redis_url=pool_url, pool=f"schedulers-{next(_numbers)}", constants={"lease": 0.3}))
    await made.look()
    yield made
    await made.close()


async def again(made: Scheduler, folder: Path, **own: Any) -> SchedulerModel:
    """Let a model that this scheduler has seen leave go, and add it again before it looks at the list."""
    entry = made.entry(folder)
    await made.listing.add(entry)
    await made.look()
    gone = made.models[1]
    await made.listing.leave(gone.settings)
    await made.look()
    assert gone.seats.engines() == 0
    assert await gone.gone()
    await made.listing.drop(gone.settings)
    await made.listing.add(made.entry(folder, **own))
    return gone


async def test_a_model_that_is_added_again_at_once_stays(made: Scheduler, folder: Path) -> None:
    model = await again(made, folder)
    await made.look()
    assert model.seats.engines() == 1
    assert made.replica._leaving == {}
    assert (await model.pools[0].engines(model.seats.cluster, 1)).wanted == 1


async def test_a_model_that_is_added_again_has_its_new_settings(made: Scheduler, folder: Path) -> None:
    before = await again(made, folder, engines=2)
    await made.look()
    (_, model) = made.models
    assert model is not before
    assert [seats.engines() for seats in made.replica._seats] == [1, 2]
    assert (await model.pools[0].engines(model.seats.cluster, 2)).wanted == 2


async def test_a_model_that_leaves_waits_for_the_engines_of_another_cluster(made: Scheduler, folder: Path) -> None:
    """Nobody would remove them if the list forgot the model first."""
    await made.listing.add(made.entry(folder))
    await made.look()
    model, other = made.models[1], f"other.m{made.models[1].settings.tag}"
    (pool,) = model.pools
    epoch = (await pool.acquire(f"{other}/0", "owner", 60.0)).epoch
    await made.listing.leave(model.settings)
    await made.look()
    assert not await model.gone()
    await pool.scale(other, 0)
    assert await pool.release(f"{other}/0", epoch, [], True)
    assert await model.gone()


async def test_a_seat_under_former_settings_is_given_back(made: Scheduler, folder: Path) -> None:
    before = await again(made, folder, engines=2)
    ended: list[bool] = []

    class Owned:
        def stop(self) -> bool:
            ended.append(True)
            return True

    own: Any = Owned()
    made.replica._ownership, made.replica._owned = own, Seat("c/0", 0, "1:a", model=before.settings.tag)
    await made.look()
    assert ended
    assert before in made.models
    assert before.seats not in made.replica._seats
    made.replica._ownership = made.replica._owned = None
    await made.look()
    assert [model.settings.engines for model in made.models] == [1, 2]


async def test_an_added_model_whose_files_are_gone_does_not_end_the_scheduler(
    made: Scheduler, folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    await made.listing.add(made.entry(copy))
    moved = copy.rename(tmp_path / "moved")
    await made.listing.add(made.entry(folder))
    await made.look()
    assert [model.settings.model for model in made.models] == ["default", str(folder)]
    moved.rename(copy)
    await made.look()
    assert [model.settings.model for model in made.models] == ["default", str(copy), str(folder)]


async def test_the_next_model_s_owner_leads_when_the_default_model_leaves(
    made: Scheduler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then takes care of the number of schedulers, though it did not lead when it took its seat."""
    told = asyncio.Event()

    async def follow(*_: Any) -> None:
        told.set()

    monkeypatch.setattr(scheduler, "follow", follow)
    await made.listing.add(made.entry(folder))
    await made.look()
    made.replica._owned = Seat("c.m/0", 0, "1:a", model=made.models[1].settings.tag)

    class Owned:
        async def run(self) -> float | None:
            await told.wait()
            return None

    owned: Any = Owned()
    running: Awaitable[float | None] = asyncio.ensure_future(made.replica._own(owned))
    await asyncio.sleep(0)
    assert not told.is_set()
    await made.listing.leave(made.models[0].settings)
    await made.look()
    await asyncio.wait_for(running, 30)


async def test_the_engines_of_a_model_that_leaves_are_not_announced(made: Scheduler, folder: Path) -> None:
    """A scheduler that starts would otherwise take them from the requests that the model still has."""
    await made.listing.add(made.entry(folder))
    await made.look()
    model = made.models[1]
    await model.pools[0].engines(model.seats.cluster, 1, announce=True)
    await made.listing.leave(model.settings)
    await made.look()
    announcing = asyncio.create_task(made.replica._announce())
    await asyncio.wait_for(made.replica._announced.wait(), 30)
    await asyncio.sleep(0.2)
    announcing.cancel()
    assert (await model.pools[0].engines(model.seats.cluster, 1)).wanted == 1


async def test_a_shard_that_is_away_does_not_hold_up_a_scheduler_that_starts(made: Scheduler, pool_url: str) -> None:
    url = SecretStr(f"0=redis://127.0.0.1:1 1={pool_url}")
    settings = made.settings.model_copy(update={"redis_url": url, "engines": 2})
    sharded = Scheduler(settings)
    await asyncio.wait_for(sharded.replica._read_list(sharded.listing, CLUSTER), 30)
    assert [model.settings.model for model in sharded.models] == ["default"]
    await sharded.close()
