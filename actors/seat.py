"""How a scheduler replica comes to own a seat, and keeps it while its engine loads."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from services.errors import PoolUnavailable, StaleEpoch
from services.messages import Exchange, Room
from services.pool import RequestPool

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """A seat in the pool under one epoch; `call` numbers its exchanges."""

    name: str
    index: int
    epoch: str
    call: int = 0


async def take_seat(pool: RequestPool, cluster: str, engines: int, owner: str, lease: float) -> Seat:
    """The first free seat of this cluster's `engines`. Waits, as a spare, while all are held or the pool is away."""
    while True:
        for index in range(engines):
            name = f"{cluster}/{index}"
            try:
                grant = await pool.acquire(name, owner, lease)
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
                break
            if grant.granted:
                return Seat(name, index, grant.epoch)
        await asyncio.sleep(lease / 3)


async def hold(pool: RequestPool, seat: Seat, lease: float) -> None:
    """Renew the lease until cancelled, offering no room: the engine is not there yet.

    Raises StaleEpoch when the seat was lost all the same.
    """
    while True:
        seat.call += 1
        try:
            reply = await pool.exchange(Exchange(seat.name, seat.epoch, seat.call, [], Room(0, 0, 1)))
        except PoolUnavailable as error:
            log.warning("%s: waiting for the pool: %s", seat.name, error)
        else:
            if not reply.owned:
                raise StaleEpoch(f"{seat.name} was lost while its engine was loading")
        await asyncio.sleep(lease / 3)
