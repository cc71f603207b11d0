"""How a scheduler takes a seat, and keeps it while its engine loads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from actors.liveness import watch
from services.errors import NotWanted, PoolUnavailable, StaleEpoch
from services.messages import Exchange, ExchangeReply, Room
from services.seats import ClusterSeats, SeatGrant

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """A seat in the pool under one epoch; `call` is the number of its last exchange.

    `noticed` and `acquired` are Unix times: when this process asked for the seat, and when it got it. If it is
    `surplus`, its engine has to be removed.
    """

    name: str
    index: int
    epoch: str
    noticed: float = 0.0
    acquired: float = 0.0
    call: int = 0
    surplus: bool = False


class Acquires(Protocol):
    """What `take_seat` needs of a pool."""

    async def acquire(self, seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> SeatGrant: ...
    async def engines(self, cluster: str, configured: int) -> ClusterSeats: ...


class Exchanges(Protocol):
    """What `hold` and `renew` need of a pool."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply: ...


async def take_seat(pool: Acquires, cluster: str, engines: Callable[[], int], owner: str, lease: float) -> Seat:
    """Take the first free seat of this cluster: one of those that it is to have, else a surplus one, whose engine has
    to be removed. While all are held, or the pool's server is away, the caller is a spare and waits.

    `engines` returns the configured number of engines, which counts while the pool has no other. A seat is free when
    its owner has released it, when its lease (seconds) has expired, or as soon as the owner's process is dead. `owner`
    is `<node>:<port of the lifeline>/<pid>`, and so is the owner of every other seat: its lifeline shows its death at
    once.
    """
    holders = SeatHolders(node=owner.rpartition(":")[0])
    try:
        while True:
            try:
                if seat := await _take_free(pool, cluster, engines(), owner, lease, holders):
                    return seat
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
                await asyncio.sleep(lease / 3)
            else:
                await holders.wait(lease / 3)
    finally:
        holders.close()


async def _take_free(
    pool: Acquires, cluster: str, engines: int, owner: str, lease: float, holders: SeatHolders
) -> Seat | None:
    """The first seat that is free; None if all are held, by processes that `holders` then watches."""
    seats = await pool.engines(cluster, engines)
    names = {index: f"{cluster}/{index}" for index in (*range(seats.wanted), *seats.surplus)}
    holders.keep(names.values())
    for index, name in names.items():
        noticed = time.time()
        grant = await pool.acquire(name, owner, lease, holders.dead_epoch(name))
        if grant.granted:
            return Seat(name, index, grant.epoch, noticed, time.time(), surplus=grant.surplus)
        holders.watch(name, grant)
    return None


class SeatHolders:
    """Watches the processes that hold the seats for which a spare on the node `node` waits."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._watches: dict[str, tuple[str, asyncio.Task[None]]] = {}  # seat -> epoch, task that ends with its holder

    def watch(self, seat: str, grant: SeatGrant) -> None:
        epoch, death = self._watches.get(seat, ("", None))
        if epoch == grant.epoch:
            return
        if death:
            death.cancel()
        address = grant.owner.rpartition("/")[0]
        assert address, f"owner {grant.owner!r} has no lifeline"
        self._watches[seat] = grant.epoch, asyncio.create_task(watch(address, self._node))

    def keep(self, seats: Iterable[str]) -> None:
        """Stop watching the holders of all other seats."""
        for seat in self._watches.keys() - set(seats):
            _, death = self._watches.pop(seat)
            death.cancel()

    def dead_epoch(self, seat: str) -> str | None:
        """The epoch of the seat's holder if the holder is dead, else None."""
        epoch, death = self._watches.get(seat, ("", None))
        return epoch if death and death.done() else None

    async def wait(self, timeout: float) -> None:
        """Wait until a holder is dead, for at most `timeout` seconds. Returns at once if one is dead already: it may
        have died while the pool was asked for its seat."""
        deaths = [death for _, death in self._watches.values()]
        if deaths:
            await asyncio.wait(deaths, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)

    def close(self) -> None:
        for _, death in self._watches.values():
            death.cancel()
        self._watches = {}


async def hold(pool: Exchanges, seat: Seat, lease: float, gauges: Callable[[], dict[str, float]] = dict) -> None:
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


async def renew(pool: Exchanges, seat: Seat, gauges: Callable[[], dict[str, float]] = dict) -> bool:
    """Renew the lease of a seat whose engine is not ready, and return whether the seat is surplus. `gauges` are sent
    along.

    Raises StaleEpoch if another process owns the seat, and PoolUnavailable.
    """
    seat.call += 1
    room = Room(0, 0, 1)
    exchange = Exchange(seat.name, seat.epoch, seat.call, [], room, gauges={"ready": 0.0} | gauges())
    reply = await pool.exchange(exchange)
    if not reply.owned:
        raise StaleEpoch(f"epoch {seat.epoch} of {seat.name} is over")
    return reply.surplus
