"""How a scheduler takes a seat, and keeps it while its engine loads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from actors.liveness import stopped, watch
from services.errors import NotWanted, PoolUnavailable, StaleEpoch
from services.messages import Commit, Exchange, ExchangeReply, Room
from services.metrics import Counters
from services.pool.pool import RequestPool
from services.seats import SeatGrant

POOL_PAUSE = 0.1  # seconds before a pool that is away is asked again: its server is back in a fraction of a second

T = TypeVar("T")
Gauges = Callable[[], dict[str, float]]  # what is sent with each call to the pool

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """A seat in the pool under one epoch; `call` is the number of its last exchange.

    `noticed` and `acquired` are Unix times: when this process asked for the seat, and when it got it. If it is
    `surplus`, its engine has to be removed, unless it is `shared`: another pool may have a seat of this index too, and
    with it the same engine. `model` is the tag of its model, `shard` the position of its pool among those of the
    model. `failure`: why its engine could not load the model last, in one line.
    """

    name: str
    index: int
    epoch: str
    noticed: float = 0.0
    acquired: float = 0.0
    call: int = 0
    surplus: bool = False
    shared: bool = False
    model: str = ""
    shard: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ModelSeats:
    """The seats of the model with this tag: its pools, and the name of its cluster in them. `engines` returns the
    configured number of engines, which counts while a pool has no other."""

    tag: str
    pools: Sequence[RequestPool]
    cluster: str
    engines: Callable[[], int]


async def take_seat(models: Sequence[ModelSeats], owner: str, lease: float, counters: Counters | None = None) -> Seat:
    """Take a free seat of one of these models: one of those that its cluster is to have, which are dealt to the pools
    in turn, or a surplus one, whose engine has to be removed. While all are held, or the servers of their pools are
    away, the caller is a spare and waits; `models` may change meanwhile.

    A seat is free when its owner has released it, when its lease (seconds) has expired, or as soon as the owner's
    process is dead. `owner` is `<node>:<port of the lifeline>/<pid>`, and so is the owner of every other seat: its
    lifeline shows its death at once. An owner on this node that is stopped is killed, which `counters` count.
    """
    holders: dict[RequestPool, SeatHolders] = {}
    try:
        while True:
            reached: list[SeatHolders] = []
            places = [(each, place) for each in models for place in enumerate(each.pools)]
            for gone in holders.keys() - {pool for _, (_, pool) in places}:
                holders.pop(gone).close()
            for model, (shard, pool) in places:
                watching = holders.setdefault(pool, SeatHolders(owner.rpartition(":")[0], counters))
                try:
                    seats = await pool.engines(model.cluster, model.engines())
                    indices = [*range(shard, seats.wanted, len(model.pools)), *seats.surplus]
                    if seat := await _take_free(pool, model.cluster, indices, owner, lease, watching):
                        seat.model, seat.shard = model.tag, shard
                        seat.shared = seat.surplus and await _may_have(model, pool, seat.index, lease)
                        return seat
                    reached.append(watching)
                except PoolUnavailable as error:
                    log.debug("waiting for the pool: %s", error)
            await first_death(reached, lease / 3 if len(reached) == len(places) else POOL_PAUSE)
    finally:
        for one in holders.values():
            one.close()


async def _take_free(
    pool: RequestPool, cluster: str, indices: Sequence[int], owner: str, lease: float, holders: SeatHolders
) -> Seat | None:
    """The first of these seats that is free; None if all are held, by processes that `holders` then watches."""
    names = {index: f"{cluster}/{index}" for index in indices}
    holders.keep(names.values())
    for index, name in names.items():
        noticed = time.time()
        grant = await pool.acquire(name, owner, lease, holders.dead_epoch(name))
        if grant.granted:
            return Seat(name, index, grant.epoch, noticed, time.time(), surplus=grant.surplus)
        holders.watch(name, grant)
    return None


async def _may_have(model: ModelSeats, but: RequestPool, index: int, lease: float) -> bool:
    """Whether one of the pools of a model, `but` not this one, has a seat of this index, or does not say so in time.
    Pools keep the seats that they had when the list of shards was another one."""
    others = [pool for pool in model.pools if pool is not but]
    try:
        async with asyncio.timeout(lease / 3):
            found = await asyncio.gather(*(pool.engines(model.cluster, model.engines()) for pool in others))
    except (PoolUnavailable, TimeoutError):
        return True
    return any(index in seats.indices for seats in found)


class SeatHolders:
    """Watches the processes that hold the seats of a pool for which a spare on the node `node` waits."""

    def __init__(self, node: str, counters: Counters | None = None) -> None:
        self._node, self._counters = node, counters or Counters()
        self._watches: dict[str, tuple[str, asyncio.Task[None]]] = {}  # seat -> epoch, task that ends with its holder

    def watch(self, seat: str, grant: SeatGrant) -> None:
        epoch, death = self._watches.get(seat, ("", None))
        if epoch == grant.epoch:
            return
        if death:
            death.cancel()
        assert "/" in grant.owner, f"owner {grant.owner!r} has no lifeline"
        self._watches[seat] = grant.epoch, asyncio.create_task(self._death(grant.owner))

    def keep(self, seats: Iterable[str]) -> None:
        """Stop watching the holders of all other seats."""
        for seat in self._watches.keys() - set(seats):
            _, death = self._watches.pop(seat)
            death.cancel()

    def dead_epoch(self, seat: str) -> str | None:
        """The epoch of the seat's holder if the holder is dead, else None."""
        epoch, death = self._watches.get(seat, ("", None))
        return epoch if death and death.done() else None

    async def _death(self, owner: str) -> None:
        """Return when this process is dead. If it is stopped, kill it: it could not give up the seat by itself."""
        address, _, pid = owner.rpartition("/")
        dead = asyncio.create_task(watch(address, self._node))
        still = asyncio.create_task(stopped([int(pid)] if address.rpartition(":")[0] == self._node else []))
        try:
            await asyncio.wait({dead, still}, return_when=asyncio.FIRST_COMPLETED)
            if not dead.done():  # so its pid is still its own
                log.warning("killing scheduler process %s, which is stopped", pid)
                self._counters.inc("orca:scheduler_stuck")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            await dead
        finally:
            dead.cancel()
            still.cancel()

    @property
    def deaths(self) -> list[asyncio.Task[None]]:
        """A task for each holder, which ends with it."""
        return [death for _, death in self._watches.values()]

    def close(self) -> None:
        for death in self.deaths:
            death.cancel()
        self._watches = {}


async def first_death(holders: Iterable[SeatHolders], timeout: float) -> None:
    """Wait until a holder is dead, for at most `timeout` seconds. Returns at once if one is dead already: it may have
    died while the pool was asked for its seat."""
    if deaths := [death for one in holders for death in one.deaths]:
        await asyncio.wait(deaths, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(timeout)


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, which is repeated while the pool is away. The pool's connection logs that once."""
    while True:
        try:
            return await call()
        except PoolUnavailable as error:
            log.debug("waiting for the pool: %s", error)
            await asyncio.sleep(POOL_PAUSE)


async def hold(pool: RequestPool, seat: Seat, lease: float, gauges: Gauges = dict) -> None:
    """Renew the lease until cancelled, and claim nothing, since the engine is not ready.

    Raises StaleEpoch if the seat is lost all the same, and NotWanted if it has become surplus.
    """
    while True:
        try:
            if await renew(pool, seat, gauges) and not seat.surplus:
                raise NotWanted(f"the cluster of {seat.name} is to have fewer engines")
        except PoolUnavailable as error:
            log.warning("%s: waiting for the pool: %s", seat.name, error)
        await asyncio.sleep(lease / 3)


async def renew(pool: RequestPool, seat: Seat, gauges: Gauges = dict, idle: bool = False) -> bool:
    """Renew the lease of a seat whose engine is not ready, and return whether the seat is surplus. `gauges` are sent
    along, and why it is not ready. `idle` asks for the bell, and nothing runs at the seat.

    Raises StaleEpoch if another process owns the seat, and PoolUnavailable.
    """
    told: dict[str, Any] = {"idle": idle, "holds": [] if idle else None}
    return (await exchange(pool, seat, gauges, [], Room(0, 0, 1), **told)).surplus


async def exchange(
    pool: RequestPool, seat: Seat, gauges: Gauges, commits: list[Commit], room: Room, **told: Any
) -> ExchangeReply:
    """Make the next exchange of a seat whose engine is not ready. `told`: further fields of `Exchange`. Raises as
    `renew`."""
    seat.call += 1
    told |= {"gauges": {"ready": 0.0} | gauges(), "summary": seat.failure}
    reply = await pool.exchange(Exchange(seat.name, seat.epoch, seat.call, commits, room, **told))
    if not reply.owned:
        raise StaleEpoch(f"epoch {seat.epoch} of {seat.name} is over")
    return reply
