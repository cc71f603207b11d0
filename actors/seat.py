"""How a scheduler replica comes to own a seat, and keeps it while its engine loads."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

from actors.lifeline import watch
from services.errors import PoolUnavailable, StaleEpoch
from services.messages import Exchange, ExchangeReply, Room, SeatGrant

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """A seat in the pool under one epoch; `call` numbers its exchanges.

    `noticed` and `acquired` are Unix times: when it was seen to be free, and when it was ours.
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
    """What `hold` needs of a pool."""

    async def exchange(self, exchange: Exchange) -> ExchangeReply: ...


async def take_seat(pool: Acquires, cluster: str, engines: int, owner: str, lease: float) -> Seat:
    """The first free seat of this cluster's `engines`. Waits, as a spare, while all are held or the pool is away.

    `owner` is `<node>:<port of the lifeline>/<pid>`, as is each holder's: the death of one is noticed by its lifeline,
    and its seat taken at once. Else a seat becomes free when its lease runs out, or when it is given back.
    """
    holders = Holders(here=owner.rpartition(":")[0])
    try:
        while True:
            for index in range(engines):
                name, noticed = f"{cluster}/{index}", time.time()
                try:
                    grant = await pool.acquire(name, owner, lease, holders.dead_epoch(name))
                except PoolUnavailable as error:
                    log.warning("waiting for the pool: %s", error)
                    await asyncio.sleep(lease / 3)
                    break
                if grant.granted:
                    return Seat(name, index, grant.epoch, noticed, time.time())
                holders.watch(name, grant)
            else:
                await holders.wait(lease / 3)
    finally:
        holders.forget()


class Holders:
    """Who holds the seats that a spare waits for, each watched."""

    def __init__(self, here: str) -> None:
        self._here = here
        self._watches: dict[str, tuple[str, asyncio.Task[None]]] = {}  # seat -> epoch, done when its holder is dead

    def watch(self, seat: str, grant: SeatGrant) -> None:
        epoch, death = self._watches.get(seat, ("", None))
        if epoch == grant.epoch:
            return
        if death:
            death.cancel()
        address = grant.owner.rpartition("/")[0]
        assert address, f"owner {grant.owner!r} has no lifeline"
        self._watches[seat] = grant.epoch, asyncio.create_task(watch(address, self._here))

    def dead_epoch(self, seat: str) -> str | None:
        """The epoch of the seat's holder, if that is dead."""
        epoch, death = self._watches.get(seat, ("", None))
        return epoch if death and death.done() else None

    async def wait(self, timeout: float) -> None:
        """Until a holder is dead, which may be so already: one can die while the pool is asked for its seat. At most
        `timeout` seconds."""
        await asyncio.wait(
            [death for _, death in self._watches.values()], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )

    def forget(self) -> None:
        for _, death in self._watches.values():
            death.cancel()
        self._watches = {}


async def hold(pool: Exchanges, seat: Seat, lease: float) -> None:
    """Renew the lease until cancelled, offering no room: the engine is not there yet.

    Raises StaleEpoch when the seat was lost all the same.
    """
    while True:
        try:
            await renew(pool, seat)
        except PoolUnavailable as error:
            log.warning("%s: waiting for the pool: %s", seat.name, error)
        await asyncio.sleep(lease / 3)


async def renew(pool: Exchanges, seat: Seat) -> None:
    """Renew the lease of a seat without an engine. Raises StaleEpoch if it is another's, PoolUnavailable."""
    seat.call += 1
    room = Room(0, 0, 1)
    reply = await pool.exchange(Exchange(seat.name, seat.epoch, seat.call, [], room, gauges={"ready": 0.0}))
    if not reply.owned:
        raise StaleEpoch(f"epoch {seat.epoch} of {seat.name} is over")
