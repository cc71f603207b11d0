"""Ray Serve's policy for schedulers: Serve can take it along, and it writes what the load needs to the pool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.config import AutoscalingPolicy
from tiny_models import make_tiny_model

from actors import scaling
from actors.app import build
from actors.replica import find_model, open_shards
from actors.scaling import EnginePolicy, KnownPools, decide, want_engines
from actors.seat import ModelSeats
from services.autoscaling import EngineCount, Scaling
from services.errors import PoolUnavailable
from services.messages import EngineFigures, Exchange, NewSequence, Room, Submission
from services.model_list import ModelList
from services.pool.connection import Connection
from services.pool.pool import RequestPool
from services.requests import SamplingParams
from services.settings.models import own_entry
from services.settings.settings import Settings

CLUSTER = "cluster"
AT_ONCE = Scaling(1, 3, requests_per_engine=4, upscale_delay=0.0, downscale_delay=0.0)


async def submit(pool: RequestPool, requests: int) -> None:
    for number in range(requests):
        sequence = NewSequence(f"r{number}/0", [1, 2, 3], SamplingParams(max_new_tokens=4))
        assert (await pool.submit(Submission(f"r{number}", "gateway", [sequence], "default"))).refused is None


async def test_waiting_requests_add_engines_and_their_end_removes_them(pool: RequestPool) -> None:
    count = EngineCount(AT_ONCE, 1)
    assert await decide([pool], CLUSTER, count, 1, KnownPools()) == 1
    await submit(pool, 9)
    assert await decide([pool], CLUSTER, count, 1, KnownPools()) == 3
    assert (await pool.overview()).wanted == {CLUSTER: 3}
    for number in range(9):
        await pool.cancel(f"r{number}")
    assert await decide([pool], CLUSTER, count, 1, KnownPools()) == 1
    assert (await pool.overview()).wanted == {CLUSTER: 1}


async def test_a_draining_seat_keeps_its_scheduler(pool: RequestPool) -> None:
    count = EngineCount(AT_ONCE, 2)
    await decide([pool], CLUSTER, count, 2, KnownPools())
    for index in range(3):
        assert (await pool.acquire(f"{CLUSTER}/{index}", f"owner-{index}", lease=60.0)).granted
    assert count.wanted == 1
    assert await decide([pool], CLUSTER, count, 2, KnownPools()) == 3


async def test_another_number_that_was_written_is_replaced(pool: RequestPool) -> None:
    await pool.scale(CLUSTER, 3)
    assert await decide([pool], CLUSTER, EngineCount(AT_ONCE, 1), 1, KnownPools()) == 1
    assert (await pool.overview()).wanted == {CLUSTER: 1}


async def test_a_shard_that_missed_the_number_gets_it_later(pool: RequestPool) -> None:
    """It was away when the number was written to the others, or has lost it."""
    other = RequestPool(pool._server.url, f"{pool.name}.1")
    await pool.scale(CLUSTER, 3)
    await other.scale(CLUSTER, 2)
    for pools in ([pool, other], [other, pool]):
        await pools[0].scale(CLUSTER, 2)
        await pools[1].scale(CLUSTER, 3)
        assert await decide(pools, CLUSTER, EngineCount(Scaling(3, 3, 4, 0.0, 0.0), 3), 2, KnownPools()) == 3
        assert [(await one.overview()).wanted for one in pools] == [{CLUSTER: 3}, {CLUSTER: 3}]
    await other.close()


async def test_prompts_that_wait_in_several_shards_add_engines(pool: RequestPool) -> None:
    other = RequestPool(pool._server.url, f"{pool.name}.1")
    figures = EngineFigures("tiny", 128, 8, 4, 1000, "float32/cpu")  # 32 tokens
    for number, one in enumerate((pool, other)):
        epoch = (await one.acquire(f"{CLUSTER}/{number}", "owner", lease=60.0)).epoch
        await one.exchange(Exchange(f"{CLUSTER}/{number}", epoch, 1, [], Room(0, 0, 4), figures=figures))
        sequence = NewSequence("long/0", list(range(1, 31)), SamplingParams(max_new_tokens=2))
        assert (await one.submit(Submission("long", "gateway", [sequence], "default"))).refused is None
    await decide([pool, other], CLUSTER, count := EngineCount(AT_ONCE, 2), 2, KnownPools())
    assert count.wanted == 3
    await other.close()


async def test_a_shard_that_is_away_does_not_hold_up_the_others(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, known, count = RequestPool(pool._server.url, f"{pool.name}.1"), KnownPools(), EngineCount(AT_ONCE, 2)
    await submit(other, 5)
    assert await decide([pool, other], CLUSTER, count, 2, known) == 2
    await other.close()
    monkeypatch.setattr(other, "_server", Connection("redis://127.0.0.1:1"))
    await submit(pool, 4)
    assert await decide([pool, other], CLUSTER, count, 2, known) == 3
    assert count.wanted == 3
    assert (await pool.overview()).wanted == {CLUSTER: 3}
    with pytest.raises(PoolUnavailable):  # nothing is known of it
        await decide([pool, other], CLUSTER, count, 2, KnownPools())
    with pytest.raises(PoolUnavailable):
        await decide([other], CLUSTER, count, 2, known)
    await other.close()


async def test_the_number_of_schedulers_follows_the_shards_that_answer(
    pool: RequestPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, told = RequestPool(pool._server.url, f"{pool.name}.1"), asyncio.Queue[int]()
    loop = asyncio.get_running_loop()

    def tell(_application: str, _deployment: str, number: int) -> bool:
        loop.call_soon_threadsafe(told.put_nowait, number)
        return True

    monkeypatch.setattr(scaling.serve, "get_replica_context", lambda: SimpleNamespace(app_name="a", deployment="d"))
    monkeypatch.setattr(scaling, "set_replicas", tell)
    following = asyncio.create_task(scaling.follow([ModelSeats("", [pool, other], CLUSTER, lambda: 2)], 0.02, 3))
    await want_engines([pool, other], CLUSTER, 4)
    assert await asyncio.wait_for(told.get(), 30) == 5
    away = other._server
    monkeypatch.setattr(other, "_server", Connection("redis://127.0.0.1:1"))
    with pytest.raises(PoolUnavailable):
        await want_engines([pool, other], CLUSTER, 6)
    assert await asyncio.wait_for(told.get(), 30) == 7
    following.cancel()
    await other.close()
    await away.close()


async def test_the_policy_follows_models_that_come_and_go(
    pool_url: str, default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has schedulers for an added model, and does not bring back the engines of one that leaves."""
    monkeypatch.setattr(scaling, "cluster_id", lambda: CLUSTER)
    monkeypatch.setattr(scaling, "INTERVAL", 0.05)
    settings = Settings(redis_url=pool_url, pool="policy", engines=2, max_engines=3)
    own = {"model": str(make_tiny_model(tmp_path / "model", "qwen3")), "pool": "policy", "max_engines": 2}
    scaler, listing = scaling.EngineScaler(settings), ModelList(settings)
    running = asyncio.create_task(scaler.run())

    async def until(schedulers: int) -> None:
        async with asyncio.timeout(30):
            while scaler.replicas != schedulers:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.02)

    await until(3)
    await listing.add(own_entry(settings.of_server(), own, Settings))
    await until(4)
    added = (await listing.read())[1].settings
    (shard,) = open_shards(added, find_model(added)[1])
    cluster = f"{CLUSTER}.m{added.tag}"
    await listing.leave(added)
    async with asyncio.timeout(30):
        while not scaler._listed[added.tag].leaving:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
        while scaler.replicas != 3:  # as schedulers do: the policy may still write what it decided before
            await shard.pool.scale(cluster, 0)
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    assert (await shard.pool.engines(cluster, 1)).wanted == 0
    await listing.drop(added)
    await asyncio.sleep(0.2)
    assert scaler.replicas == 3
    scaler.stop()
    await running
    await listing.close()
    await shard.pool.close()


def test_serve_takes_the_policy_along() -> None:
    """Serve pickles a policy by value, and its controller makes it of the pickle."""
    policy = AutoscalingPolicy(policy_function=EnginePolicy, policy_kwargs={"max_engines": 3})
    copy: Any = AutoscalingPolicy.from_serialized_policy_def(policy.model_dump(), policy.get_serialized_policy_def())
    assert copy.policy_function == "actors.scaling.EnginePolicy"
    assert copy.get_policy().__name__ == "EnginePolicy"


@pytest.mark.parametrize(
    ("args", "scheduler", "gateway"),
    [
        ({"engines": 2}, 3, 2),
        ({"engines": 2, "max_engines": 5}, (2, 3, 6), 2),
        ({"gateways": 3, "max_gateways": 7}, 2, (3, 3, 7)),
    ],
)
def test_the_application_has_the_bounds_of_the_settings(
    args: dict[str, Any], scheduler: object, gateway: object
) -> None:
    application = build({"redis_url": "redis://127.0.0.1:1/0", "null_engine": True} | args)
    ingress: Any = application._bound_deployment
    (other,) = [arg for arg in ingress.init_args if not isinstance(arg, dict)]
    assert _replicas(other._bound_deployment) == scheduler
    assert _replicas(ingress) == gateway


def _replicas(deployment: Any) -> object:
    scaling = deployment._deployment_config.autoscaling_config
    if scaling is None:
        return deployment.num_replicas
    return scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas
