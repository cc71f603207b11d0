"""The faults: each kills or stops processes of a running server. Whoever injects them sees to it that a load runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgpack
import redis

from load.chaos.pool_server import connect
from load.server import OrcaServer
from load.until import until

ENGINE, SCHEDULER, GATEWAY = "ray::EngineActor", "ray::ServeReplica:orca:scheduler", "ray::ServeReplica:orca:gateway"
CONTROLLER, PROXY = "ray::ServeController", "ray::HAProxyManager"
STUCK = 60.0  # seconds within which somebody must have noticed a stopped engine


class NoTarget(Exception):
    """There is no such process just now: one that died before is not back yet."""


@dataclass(slots=True)
class Site:
    """The server that is being hurt.

    `start_again` replaces `server` by a new one on the same folder and port; `poison` sends a request that kills
    engines and returns when it was refused. `past_lease` and `outage` are the seconds for which a scheduler, and the
    pool's server, stand still.
    """

    server: OrcaServer
    start_again: Callable[[], None]
    poison: Callable[[], Awaitable[None]]
    past_lease: float = 8.0
    outage: float = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` hurts and returns when nothing more is going to happen by itself; raises NoTarget.

    `takes_all`: the whole cluster has to start anew. `takes_pool`: the pool's server dies.
    """

    name: str
    inject: Callable[[Site], Awaitable[None]]
    takes_all: bool = False
    takes_pool: bool = False


# --- who is who ----------------------------------------------------------------------------------------------


def loaded_engine(server: OrcaServer) -> int:
    """The process with weights, of one of the engines."""
    told = seat_pids(server.data_dir, "engine_pid")
    return random.choice(_some([pid for pid in server.pids(ENGINE) if pid in told], "engine with weights"))


def owning_schedulers(server: OrcaServer) -> list[int]:
    told = seat_pids(server.data_dir, "scheduler_pid")
    return [pid for pid in server.pids(SCHEDULER) if pid in told]


def seat_pids(data_dir: Path, gauge: str) -> list[int]:
    """What the owners of the seats said last, in the pool; none while it is away."""
    with contextlib.suppress(redis.RedisError), connect(data_dir) as pool:
        blobs = [pool.hget(key, "gauges") for key in pool.scan_iter("orca:*:seat:*")]
        return [int(msgpack.unpackb(blob).get(gauge, 0)) for blob in blobs if isinstance(blob, bytes)]
    return []


def _some(pids: list[int], what: str) -> list[int]:
    if not pids:
        raise NoTarget(what)
    return pids


def _owner(server: OrcaServer) -> int:
    return random.choice(_some(owning_schedulers(server), "scheduler with a seat"))


def _without(pids: list[int], *others: int) -> list[int]:
    return [pid for pid in pids if pid not in others]


# --- what happens to them ------------------------------------------------------------------------------------


def _signal(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def _stop_for(pid: int, seconds: float) -> None:
    _signal(signal.SIGSTOP, pid)
    try:
        await asyncio.sleep(seconds)
    finally:
        _signal(signal.SIGCONT, pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill_one(title: str, what: str) -> Callable[[Site], Awaitable[None]]:
    async def inject(site: Site) -> None:
        _signal(signal.SIGKILL, random.choice(_some(site.server.pids(title), what)))

    return inject


def _kill_of_cluster(name: str, wait: bool = False) -> Callable[[Site], Awaitable[None]]:
    async def inject(site: Site) -> None:
        again = sum("ready again" in line for line in site.server.lines)
        _signal(signal.SIGKILL, *_some(site.server.cluster(name), name))
        if wait:
            await asyncio.to_thread(site.server.until, "ready again", again + 1)

    return inject


async def _engine(site: Site) -> None:
    _signal(signal.SIGKILL, loaded_engine(site.server))


async def _spare_engine(site: Site) -> None:
    spares = _without(site.server.pids(ENGINE), loaded_engine(site.server))
    _signal(signal.SIGKILL, random.choice(_some(spares, "spare engine")))


async def _scheduler(site: Site) -> None:
    _signal(signal.SIGKILL, _owner(site.server))


async def _spare_scheduler(site: Site) -> None:
    spares = _without(site.server.pids(SCHEDULER), *owning_schedulers(site.server))
    _signal(signal.SIGKILL, random.choice(_some(spares, "spare scheduler")))


async def _engine_and_scheduler(site: Site) -> None:
    _signal(signal.SIGKILL, loaded_engine(site.server), _owner(site.server))


async def _stopped_scheduler(site: Site) -> None:
    """Without a spare nobody would take the seat, however long its owner slept."""
    owners = _some(owning_schedulers(site.server), "scheduler with a seat")
    _some(_without(site.server.pids(SCHEDULER), *owners), "spare scheduler")
    stopped = random.choice(owners)
    _signal(signal.SIGSTOP, stopped)
    try:
        await asyncio.sleep(site.past_lease)
        await until(lambda: stopped not in owning_schedulers(site.server), STUCK)  # the spare's may still be starting
    finally:
        _signal(signal.SIGCONT, stopped)


async def _stuck_engine(site: Site) -> None:
    engine = loaded_engine(site.server)
    _signal(signal.SIGSTOP, engine)
    try:
        await until(lambda: not _lives(engine), STUCK)
    finally:
        _signal(signal.SIGCONT, engine)


async def _pool_killed(site: Site) -> None:
    _signal(signal.SIGKILL, *_some(site.server.pool_server(), "pool's server"))


async def _pool_stopped(site: Site) -> None:
    (pool,) = _some(site.server.pool_server(), "pool's server")
    await _stop_for(pool, site.outage)


async def _poison(site: Site) -> None:
    await site.poison()


async def _orca_serve(site: Site) -> None:
    site.server.process.kill()
    site.server.process.wait()
    await asyncio.to_thread(site.start_again)


async def _everything(site: Site) -> None:
    site.server.kill_all()
    await asyncio.to_thread(site.start_again)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("engine", _engine),
        Fault("spare engine", _spare_engine),
        Fault("scheduler", _scheduler),
        Fault("spare scheduler", _spare_scheduler),
        Fault("engine and scheduler", _engine_and_scheduler),
        Fault("gateway", _kill_one(GATEWAY, "gateway")),
        Fault("scheduler stopped", _stopped_scheduler),
        Fault("engine stuck", _stuck_engine),
        Fault("poison", _poison),
        Fault("pool", _pool_killed, takes_pool=True),
        Fault("pool stopped", _pool_stopped),
        Fault("controller", _kill_one(CONTROLLER, "controller")),
        Fault("haproxy", _kill_of_cluster("haproxy")),
        Fault("proxy manager", _kill_one(PROXY, "proxy manager")),
        Fault("gcs", _kill_of_cluster("gcs_server", wait=True), takes_all=True),
        Fault("raylet", _kill_of_cluster("raylet", wait=True), takes_all=True),
        Fault("orca serve", _orca_serve, takes_all=True),
        Fault("everything", _everything, takes_all=True, takes_pool=True),
    )
}


def plan(names: list[str], count: int, draw: random.Random) -> list[Fault]:
    """`count` faults in random order: each kind once, then again and again those that do not take all."""
    kinds = [FAULTS[name] for name in names]
    chosen = draw.sample(kinds, len(kinds))
    small = [fault for fault in kinds if not fault.takes_all]
    while small and len(chosen) < count:
        chosen += draw.sample(small, len(small))
    return chosen[:count]
