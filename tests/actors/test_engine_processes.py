"""The processes of a seat's engine: which of them a scheduler attaches to, and which it kills."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from engine_seats import (
    SETTINGS,
    WAIT,
    attach,
    attach_with_spare,
    iteration,
    keeping_spare,
    named,
    seat,
    served,
    spare_name,
    status_of,
)
from tiny_models import make_tiny_model

from actors import engine_processes
from actors.engine_client import EngineClient
from actors.ownership import Ownership
from actors.placement import engine_labels, engine_names, ensure_engine, find_engine
from actors.seat import Seat, renew
from load.server import until
from services.errors import EngineLost, OtherWeights, StaleEpoch
from services.loop.iteration_cost import IterationCost
from services.messages import Iteration
from services.metrics import Counters
from services.models.pin import pin
from services.pool.pool import RequestPool
from services.settings.sources import load

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("ray_cluster", "nothing_left"),
]


async def test_weights_are_loaded_once_and_serve_the_last_owner() -> None:
    first = await attach(seat(), "1:a")
    assert (await first.start(iteration("1:a"))).tokens.keys() == {"r/0"}
    second = await attach(seat(), "2:b")
    assert second.status.pid == first.status.pid
    assert second.status.epoch == "1:a"
    with pytest.raises(StaleEpoch):
        await first.start(iteration("1:a"))
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}


async def test_an_owner_that_attaches_late_does_not_disturb_a_later_one() -> None:
    client = await attach(seat(), "2:b")
    with pytest.raises(StaleEpoch, match="a later owner"):
        await named(client.status.name).serve.remote("1:a")
    assert (await client.start(iteration("2:b"))).tokens.keys() == {"r/0"}


async def test_a_later_owner_that_was_not_announced_is_not_disturbed_either() -> None:
    """Ray may lose the call that announces an owner and deliver the next one."""
    client = await attach(seat(), "1:a")
    engine = named(client.status.name)
    await engine.serve.remote("3:c")
    with pytest.raises(StaleEpoch, match="a later owner"):
        await engine.serve.remote("2:b")


async def test_an_owner_in_a_pool_whose_clock_is_behind_gets_a_later_epoch(pool_url: str) -> None:
    """The engine's last owner had its epoch from another pool: the list of shards has changed."""
    pool = RequestPool(pool_url, "clock-behind")
    ahead = f"{8 * 10**15}:other"
    before = await attach(seat(), ahead)
    grant = await pool.acquire("c/0", "me", 60.0)
    context: Any = SimpleNamespace(
        settings=SETTINGS,
        pool=pool,
        owner="me",
        node=ray.util.get_node_ip_address(),
        counters=Counters(),
        bounds=IterationCost(),
        lifeline=SimpleNamespace(watchers=0),
    )
    taken = Seat("c/0", 0, grant.epoch)
    await asyncio.wait_for(Ownership(context, taken, None)._attach(), WAIT)
    assert await served(before.status.name) == taken.epoch != grant.epoch
    await renew(pool, taken)
    with pytest.raises(StaleEpoch):
        await renew(pool, Seat("c/0", 0, grant.epoch))
    other = await pool.acquire("c/0", "other", 60.0, dead_epoch=taken.epoch)
    late = Ownership(context, Seat("c/0", 0, grant.epoch), None)  # its seat has another owner
    with pytest.raises(StaleEpoch):
        await asyncio.wait_for(late._attach(), WAIT)
    assert not (await pool.acquire("c/0", "third", 60.0)).granted
    assert (await pool.acquire("c/0", "other", 60.0)).epoch == other.epoch
    await pool.close()


async def test_the_spare_takes_over_and_the_dead_one_becomes_the_spare() -> None:
    first = await attach_with_spare("1:a")
    os.kill(first.status.pid, signal.SIGKILL)
    await asyncio.wait_for(first.dead, WAIT)
    with pytest.raises(EngineLost):
        await first.start(iteration("1:a"))
    second = await attach(seat(), "2:b")
    assert second.status.name != first.status.name
    assert (await second.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    async with keeping_spare(seat(), second, "2:b"):
        os.kill(second.status.pid, signal.SIGKILL)
        third = await attach(seat(), "3:c")
    assert third.status.name == first.status.name
    assert third.status.pid != first.status.pid


async def test_an_engine_that_does_not_answer_is_killed() -> None:
    client = await attach(seat(), "1:a")
    os.kill(client.status.pid, signal.SIGSTOP)
    await until(lambda: stands_still(client.status.pid))
    stuck = client.start(iteration("1:a"))
    done, _ = await asyncio.wait({stuck}, timeout=1)
    assert not done
    await client.kill()
    assert client.dead.done()
    with pytest.raises(EngineLost):
        await stuck
    again = await attach(seat(), "2:b")
    assert again.status.pid != client.status.pid


def stands_still(pid: int) -> bool:
    """Whether all threads are stopped, which takes a moment after the signal."""
    return all("State:\tT" in (task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())


async def test_an_engine_is_killed_from_another_node() -> None:
    client = await attach(seat(), "1:a")
    actor = named(client.status.name)
    afar = EngineClient([(client.status, actor)], 0, "192.0.2.1")
    await afar.kill()
    await asyncio.wait_for(client.dead, WAIT)
    assert (await status_of(client.status.name)).pid != client.status.pid
    afar.close()


async def test_an_owner_on_another_node_and_one_on_the_same_take_turns() -> None:
    afar = await attach(seat(node="192.0.2.1"), "1:a")
    assert (await afar.start(iteration("1:a"))).tokens.keys() == {"r/0"}
    near = await attach(seat(), "2:b")
    assert near.status.pid == afar.status.pid
    assert (await near.start(iteration("2:b"))).tokens.keys() == {"r/0"}
    with pytest.raises(StaleEpoch):
        await afar.start(iteration("1:a"))
    assert (await (await attach(seat(node="192.0.2.1"), "3:c")).start(iteration("3:c"))).step == 1


async def test_an_engine_that_fails_tells_why() -> None:
    client = await attach(seat(), "1:a")
    with pytest.raises(EngineLost, match="KeyError: 'unknown'"):
        await client.start(Iteration("1:a", 1, {"unknown": 1}))
    assert not client.dead.done()


async def test_an_engine_with_weights_that_never_gets_ready_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers `status`, but its calls never end."""

    def hang(actor: Any) -> None:
        actor._warm_up = lambda epoch: time.sleep(3600)

    monkeypatch.setattr(engine_processes, "REUSE_TIMEOUT", 2.0)
    first = await attach(seat(), "1:a")
    actor = find_engine(first.status.name)
    assert actor is not None
    await actor.__ray_call__.remote(hang)
    with pytest.raises(EngineLost, match="not ready within 2 s"):
        await attach(seat(), "2:b")
    await asyncio.wait_for(first.dead, WAIT)
    third = await attach(seat(), "3:c")
    assert (await third.start(iteration("3:c"))).tokens.keys() == {"r/0"}


async def test_of_two_with_weights_only_a_later_owners_is_kept() -> None:
    first = await attach_with_spare("1:a")
    other = named(spare_name(first))
    await other.serve.remote("2:b")
    await other.drop.remote("1:a")  # from an owner that was stopped, and goes on late
    assert await served(spare_name(first)) == "2:b"
    third = await attach(seat(), "3:c")  # either is right
    async with keeping_spare(seat(), third, "3:c"):
        assert await served(spare_name(third)) is None
        assert await served(third.status.name) == "3:c"


async def test_engines_of_another_build_are_replaced() -> None:
    old = await attach(seat(), "1:a")
    new = await attach(seat(load(null_engine=True, block_size=32)), "2:b")
    assert new.status.build != old.status.build
    await asyncio.wait_for(old.dead, WAIT)
    assert (await new.start(iteration("2:b"))).tokens.keys() == {"r/0"}


async def test_a_removed_engine_leaves_no_process_and_frees_its_place() -> None:
    engine = seat()
    client = await attach_with_spare("1:a")
    pids = [client.status.pid, (await status_of(spare_name(client))).pid]
    assert engine_labels() == ["0"]
    await engine.remove()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), WAIT)
    await until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], WAIT)
    assert engine_labels() == []
    await engine.remove()  # by the next owner, after the first one died
    again = await attach(seat(), "2:b")
    assert again.status.pid not in pids


async def test_the_ranks_of_an_engine_are_on_one_node() -> None:
    await asyncio.to_thread(ensure_engine, load(null_engine=True), 0)
    group = ray.util.get_placement_group("engine-0")
    assert ray.util.placement_group_table(group)["strategy"] == "STRICT_PACK"


async def test_an_engine_whose_files_change_does_not_load_other_weights(tmp_path: Path) -> None:
    """Neither process loads them, and both go on; the spare holds no memory here. The original weights are loaded when
    their files are restored."""
    folder = make_tiny_model(tmp_path / "model")
    settings = load(model=pin(str(folder), tmp_path / "cache"), device="cpu", dtype="float32", kv_blocks=64)
    engine = seat(settings)
    link = await attach(engine, "1:a")
    await asyncio.to_thread(ensure_engine, settings, 0, 0, 1)
    await status_of(engine_names("0")[1])
    weights = folder / "model.safetensors"
    old = weights.read_bytes()
    weights.write_bytes((make_tiny_model(tmp_path / "other", seed=1) / weights.name).read_bytes())
    assert weights.stat().st_size == len(old)

    os.kill(link.status.pid, signal.SIGKILL)
    await asyncio.wait_for(link.dead, WAIT)
    link.close()
    with pytest.raises(OtherWeights, match="this server was started with"):
        await attach(engine, "2:b")
    pids = [(await status_of(name)).pid for name in engine_names("0")]
    with pytest.raises(OtherWeights, match="this server was started with"):
        await attach(engine, "3:c")
    assert [(await status_of(name)).pid for name in engine_names("0")] == pids
    weights.write_bytes(old)
    back = await attach(engine, "4:d")
    assert back.status.pid in pids
    back.close()


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
