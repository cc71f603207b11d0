"""How a scheduler takes a seat, and keeps it while its engine loads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from actors.liveness import watch
from services.errors import PoolUnavailable, StaleEpoch
from services.messages import Exchange, ExchangeReply, Room, SeatGrant

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """A seat in the pool under one epoch; `call` is the number of its last exchange.

    `noticed` and `acquired` are Unix times: when this process asked for the seat, and when it got it.
    """

    name: str
    index: int
    epoch: str
    noticed: float = 0.0
    acquired: float = 0.0
    call: int = 0


class Acquires(Protocol):
    """What `take_seat` needs of a pool."""

    async def acquire(self, seat: str, owner: str, lease: float, dead_epoch: str | None = None) -> SeatGrant: ...


class Exchanges(Protocol):
    """What `hold` and `renew` need of a pool."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply: ...


def of_seat(shards: Sequence[T], index: int) -> T:
    """The shard of the seat `index`: seats are dealt to the shards in turn."""
    return shards[index % len(shards)]


async def take_seat(pools: Sequence[Acquires], cluster: str, engines: int, owner: str, lease: float) -> Seat:
    """Take the first free seat of the `engines` seats of this cluster, each in its pool (`of_seat`). While all are
    held, or the server of their pool is away, the caller is a spare and waits.

    A seat is free when its owner has released it, when its lease (seconds) has expired, or as soon as the owner's
    process is dead. `owner` is `<node>:<port of the lifeline>/<pid>`, and so is the owner of every other seat: its
    lifeline shows its death at once.
    """
    holders = SeatHolders(node=owner.rpartition(":")[0])
    try:
        while True:
            away, asked = [], []  # pools that do not answer, seats of those that do
            for index in range(engines):
                name, noticed = f"{cluster}/{index}", time.time()
                if (pool := of_seat(pools, index)) in away:
                    continue
                try:
                    grant = await pool.acquire(name, owner, lease, holders.dead_epoch(name))
                except PoolUnavailable as error:
                    log.warning("waiting for the pool: %s", error)
                    away.append(pool)
                    continue
                if grant.granted:
                    return Seat(name, index, grant.epoch, noticed, time.time())
                holders.watch(name, grant)
                asked.append(name)
            await holders.wait(asked, lease / 3)
    finally:
        holders.close()


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

    def dead_epoch(self, seat: str) -> str | None:
        """The epoch of the seat's holder if the holder is dead, else None."""
        epoch, death = self._watches.get(seat, ("", None))
        return epoch if death and death.done() else None

    async def wait(self, seats: Sequence[str], timeout: float) -> None:
        """Wait until a holder of these seats is dead, for at most `timeout` seconds. Returns at once if one is dead
        already: it may have died while the pool was asked for its seat."""
        if deaths := [self._watches[seat][1] for seat in seats]:
            await asyncio.wait(deaths, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)

    def close(self) -> None:
        for _, death in self._watches.values():
            death.cancel()
        self._watches = {}


async def hold(pool: Exchanges, seat: Seat, lease: float, gauges: Callable[[], dict[str, float]] = dict) -> None:
    """Renew the lease until cancelled, and claim nothing, since the engine is not ready.

    Raises StaleEpoch if the seat is lost all the same.
    """
    while True:
        try:
            await renew(pool, seat, gauges)
        except PoolUnavailable as error:
            log.warning("%s: waiting for the pool: %s", seat.name, error)
        await asyncio.sleep(lease / 3)


async def renew(pool: Exchanges, seat: Seat, gauges: Callable[[], dict[str, float]] = dict) -> None:
    """Renew the lease of a seat whose engine is not ready. `gauges` are sent along.

    Raises StaleEpoch if another process owns the seat, and PoolUnavailable.
    """
    seat.call += 1
    room = Room(0, 0, 1)
    exchange = Exchange(seat.name, seat.epoch, seat.call, [], room, gauges={"ready": 0.0} | gauges())
    reply = await pool.exchange(exchange)
    if not reply.owned:
        raise StaleEpoch(f"epoch {seat.epoch} of {seat.name} is over")
