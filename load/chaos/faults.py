"""The faults: each kills or stops processes of a running server, while the caller keeps it under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from load.chaos.site import (
    CONTROLLER,
    ENGINE,
    GATEWAY,
    PROXY,
    SCHEDULER,
    Site,
    loaded_engine,
    owning_schedulers,
    some,
)
from load.server import OrcaServer, until

STUCK = 60.0  # seconds within which a stopped engine must have been noticed


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to hurt a server. `inject` returns when the fault itself is over; it raises NoTarget.

    `takes_all`: the whole cluster has to start again. `takes_pool`: the pool's server dies.
    """

    name: str
    inject: Callable[[Site], Awaitable[None]]
    takes_all: bool = False
    takes_pool: bool = False


def _owner(server: OrcaServer) -> int:
    return random.choice(some(owning_schedulers(server), "scheduler with a seat"))


def _without(pids: list[int], *others: int) -> list[int]:
    return [pid for pid in pids if pid not in others]


def signal_to(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def stop_for(pid: int, seconds: float) -> None:
    signal_to(signal.SIGSTOP, pid)
    try:
        await asyncio.sleep(seconds)
    finally:
        signal_to(signal.SIGCONT, pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill_one(title: str, what: str) -> Callable[[Site], Awaitable[None]]:
    async def inject(site: Site) -> None:
        signal_to(signal.SIGKILL, random.choice(some(site.server.pids(title), what)))

    return inject


def _kill_of_cluster(name: str, wait: bool = False) -> Callable[[Site], Awaitable[None]]:
    async def inject(site: Site) -> None:
        again = sum("ready again" in line for line in site.server.lines)
        signal_to(signal.SIGKILL, *some(site.server.cluster(name), name))
        if wait:
            await asyncio.to_thread(site.server.until, "ready again", again + 1)

    return inject


async def _engine(site: Site) -> None:
    signal_to(signal.SIGKILL, loaded_engine(site.server))


async def _spare_engine(site: Site) -> None:
    spares = _without(site.server.pids(ENGINE), loaded_engine(site.server))
    signal_to(signal.SIGKILL, random.choice(some(spares, "spare engine")))


async def _scheduler(site: Site) -> None:
    signal_to(signal.SIGKILL, _owner(site.server))


async def _spare_scheduler(site: Site) -> None:
    spares = _without(site.server.pids(SCHEDULER), *owning_schedulers(site.server))
    signal_to(signal.SIGKILL, random.choice(some(spares, "spare scheduler")))


async def _engine_and_scheduler(site: Site) -> None:
    signal_to(signal.SIGKILL, loaded_engine(site.server), _owner(site.server))


async def _stopped_scheduler(site: Site) -> None:
    """Needs a spare: without one, no other process takes the seat, however long its owner stands still."""
    owners = some(owning_schedulers(site.server), "scheduler with a seat")
    some(_without(site.server.pids(SCHEDULER), *owners), "spare scheduler")
    stopped = random.choice(owners)
    signal_to(signal.SIGSTOP, stopped)
    try:
        await asyncio.sleep(site.past_lease)
        await until(lambda: stopped not in owning_schedulers(site.server), STUCK)  # the spare may still be starting
    finally:
        signal_to(signal.SIGCONT, stopped)


async def _stuck_engine(site: Site) -> None:
    engine = loaded_engine(site.server)
    signal_to(signal.SIGSTOP, engine)
    try:
        await until(lambda: not _lives(engine), STUCK)
    finally:
        signal_to(signal.SIGCONT, engine)


async def _pool_killed(site: Site) -> None:
    signal_to(signal.SIGKILL, *some(site.server.pool_server(), "pool's server"))


async def _pool_stopped(site: Site) -> None:
    (pool,) = some(site.server.pool_server(), "pool's server")
    await stop_for(pool, site.outage)


async def _poison(site: Site) -> None:
    assert site.poison, "this run sends no poison"
    await site.poison()


async def _orca_serve(site: Site) -> None:
    site.server.process.kill()
    site.server.process.wait()
    assert site.start_again, "this run starts no server again"
    await asyncio.to_thread(site.start_again)


async def _everything(site: Site) -> None:
    site.server.kill_all()
    assert site.start_again, "this run starts no server again"
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


def plan(kinds: list[Fault], count: int, draw: random.Random) -> list[Fault]:
    """`count` faults in random order: each kind once, then repeatedly those that do not take the whole cluster."""
    chosen = draw.sample(kinds, len(kinds))
    small = [fault for fault in kinds if not fault.takes_all]
    while small and len(chosen) < count:
        chosen += draw.sample(small, len(small))
    return chosen[:count]
