"""BatchLease: which gateway owns a batch.

The owner holds the batch's name in the pool of its slot. While the slot moves to another shard, it holds the name in
both, since other gateways may still have the list of shards before the change, or have the one after it already:

- Lists change in steps: shard 1 is missing, `new`, serving; or serving, `draining`, missing. Of two lists that follow
  each other, one names a shard as moving and locks in both shards; the other locks in one of them. So any two
  gateways have a shard in common, which decides.
- An attempt takes the locks in the order of the shards' numbers, and gives them up if it does not get all. Of several
  attempts at once, the one that gets the first common lock goes on.
- A batch without an owner waits while one of the two shards is away. Its owner goes on: nobody else can take the lock
  there. If a lease runs out meanwhile and another gateway takes that lock first, the next renewal fails.
- A list that skips a step has no shard in common with the one before. Two owners then answer lines twice, in segments
  of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from gateway.gateway import Gateway
from services.errors import PoolUnavailable
from services.pool.pool import RequestPool

LEASE = 10.0  # seconds that a batch is owned without a renewal
PERIOD = 1.0  # seconds between renewals


class BatchLease:
    """The ownership of a batch under one epoch."""

    def __init__(self, gateway: Gateway, id: str) -> None:
        self.holder = f"{gateway.id}-{secrets.token_hex(4)}"
        self._name = f"batch:{id}"
        self._pools = gateway.shards.pools_of_lock(self._name)
        self._epochs: list[str] = []  # of the lock in each pool

    @property
    def segment(self) -> str:
        """The name of this owner's segment: the greatest epoch, and an id that is unique even if the pool lost it."""
        return f"{max(self._epochs, key=int)}-{self.holder}"

    async def take(self) -> bool:
        """Whether this gateway now owns the batch. Raises PoolUnavailable."""
        epochs: list[str] = []
        try:
            for pool in self._pools:
                if (epoch := await pool.hold(self._name, self.holder, LEASE)) is None:
                    return False
                epochs.append(epoch)
            self._epochs = epochs
            return True
        finally:
            if not self._epochs:
                await self.give_up()

    async def keep(self) -> None:
        """Renew the lease each `PERIOD`; return when another gateway owns the batch."""
        while True:
            if not await self.renew():
                return
            await asyncio.sleep(PERIOD)

    async def renew(self) -> bool:
        """Whether this gateway still owns the batch. No other can take it in a pool that is unavailable."""
        assert self._epochs, "the lease was taken"
        held = zip(self._pools, self._epochs, strict=True)
        return all(await asyncio.gather(*(self._renewed(pool, epoch) for pool, epoch in held)))

    async def give_up(self) -> None:
        await asyncio.gather(*map(self._free, self._pools))

    async def _renewed(self, pool: RequestPool, epoch: str) -> bool:
        try:
            return await pool.hold(self._name, self.holder, LEASE) == epoch
        except PoolUnavailable:
            return True

    async def _free(self, pool: RequestPool) -> None:
        with contextlib.suppress(PoolUnavailable):  # the lease runs out there
            await pool.unhold(self._name, self.holder)
