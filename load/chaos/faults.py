"""The faults: each kills or stops processes of a running server, while the caller keeps it under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
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
    seat_pids,
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


def signal_to(number: signal.Signals, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def _stopped(*pids: int) -> Iterator[None]:
    signal_to(signal.SIGSTOP, *pids)
    try:
        yield
    finally:
        signal_to(signal.SIGCONT, *pids)


async def stop_for(seconds: float, *pids: int) -> None:
    with _stopped(*pids):
        await asyncio.sleep(seconds)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _owner(server: OrcaServer) -> int:
    return random.choice(some(owning_schedulers(server), "scheduler with a seat"))


def _one(title: str, what: str) -> Callable[[OrcaServer], int]:
    return lambda server: random.choice(some(server.pids(title), what))


def _spare(title: str, what: str, used: Callable[[OrcaServer], list[int]]) -> Callable[[OrcaServer], int]:
    def find(server: OrcaServer) -> int:
        return random.choice(some([pid for pid in server.pids(title) if pid not in used(server)], what))

    return find


_spare_scheduler = _spare(SCHEDULER, "spare scheduler", owning_schedulers)
_spare_engine = _spare(ENGINE, "spare engine", lambda server: seat_pids(server.data_dir, "engine_pid"))
_gateway = _one(GATEWAY, "gateway")


def _kill(*victims: Callable[[OrcaServer], int]) -> Callable[[Site], Awaitable[None]]:
    """Kill these processes at once."""

    async def inject(site: Site) -> None:
        signal_to(signal.SIGKILL, *[victim(site.server) for victim in victims])

    return inject


def _kill_of_cluster(name: str, wait: bool = False) -> Callable[[Site], Awaitable[None]]:
    async def inject(site: Site) -> None:
        again = sum("ready again" in line for line in site.server.lines)
        signal_to(signal.SIGKILL, *some(site.server.cluster(name), name))
        if wait:
            await asyncio.to_thread(site.server.until, "ready again", again + 1)

    return inject


def _stop_owner(*beside: Callable[[OrcaServer], int]) -> Callable[[Site], Awaitable[None]]:
    """Stop a scheduler past its lease, and the processes `beside` it. Needs a spare: without one, no other process
    takes the seat, however long its owner stands still."""

    async def inject(site: Site) -> None:
        _spare_scheduler(site.server)
        owner = _owner(site.server)
        with _stopped(owner, *[find(site.server) for find in beside]):
            await asyncio.sleep(site.past_lease)
            await until(lambda: owner not in owning_schedulers(site.server), STUCK)  # the spare may still be starting

    return inject


async def _stuck_engine(site: Site) -> None:
    engine = loaded_engine(site.server)
    with _stopped(engine):
        await until(lambda: not _lives(engine), STUCK)


async def _pool_killed(site: Site) -> None:
    signal_to(signal.SIGKILL, *some(site.server.pool_server(), "pool's server"))


async def _pool_stopped(site: Site) -> None:
    await stop_for(site.outage, *some(site.server.pool_server(), "pool's server"))


async def _poison(site: Site) -> None:
    assert site.poison, "this run sends no poison"
    await site.poison()


async def _orca_serve(site: Site) -> None:
    site.server.process.kill()
    site.server.process.wait()
    await asyncio.to_thread(site.serve_again)


async def _everything(site: Site) -> None:
    site.server.kill_all()
    await asyncio.to_thread(site.serve_again)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("engine", _kill(loaded_engine)),
        Fault("spare engine", _kill(_spare_engine)),
        Fault("scheduler", _kill(_owner)),
        Fault("spare scheduler", _kill(_spare_scheduler)),
        Fault("engine and scheduler", _kill(loaded_engine, _owner)),
        Fault("gateway", _kill(_gateway)),
        Fault("scheduler stopped", _stop_owner()),
        # as others see a node whose link is cut: its processes neither answer nor end, and go on afterwards
        Fault("node cut off", _stop_owner(loaded_engine, _gateway)),
        Fault("engine stuck", _stuck_engine),
        Fault("poison", _poison),
        Fault("pool", _pool_killed, takes_pool=True),
        Fault("pool stopped", _pool_stopped),
        Fault("controller", _kill(_one(CONTROLLER, "controller"))),
        Fault("haproxy", _kill_of_cluster("haproxy")),
        Fault("proxy manager", _kill(_one(PROXY, "proxy manager"))),
        Fault("gcs", _kill_of_cluster("gcs_server")),
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
