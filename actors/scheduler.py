"""The scheduler's Serve replica: takes a seat, owns it for as long as it can, and takes one again; else it is a spare.

There is one replica more than seats. A spare has everything loaded that a scheduler needs, and watches those who hold
the seats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any

import ray

from actors.lifeline import Lifeline
from actors.ownership import Ownership, Parts
from actors.placement import cluster_id
from actors.pool import open_pool
from actors.pool_link import PoolLink
from actors.seat import take_seat
from actors.serve_ports import stay_on_node
from services.loop.iteration_cost import IterationCost
from services.metrics import Counters
from services.models import resolve
from services.models.pin import pinned_info
from services.settings.sources import load
from services.text import TextTables

STANDSTILL = 30.0  # seconds, beside two leases, after which a scheduler that does nothing counts as dead

log = logging.getLogger(__name__)


class SchedulerReplica:
    """Lives in Ray Serve, which restarts, scales and drains it; takes no requests there: all goes through the pool."""

    def __init__(self, values: dict[str, Any]) -> None:
        stay_on_node()
        self._settings = load(**values)
        self._pool: PoolLink | None = None
        self._ownership: Ownership | None = None
        self._draining = False
        self._life = asyncio.get_running_loop().create_task(self._live())
        self._life.add_done_callback(_log_death)

    def check_health(self) -> None:
        """Fails only when this scheduler's own life has ended or stands still; a dead Redis or engine is waited for."""
        if self._draining:
            return
        if self._life.done():
            raise RuntimeError(f"the scheduler ended: {self._life.exception()!r}")
        still = time.monotonic() - self._pool.turned if self._pool else 0.0
        if still > STANDSTILL + 2 * self._settings.lease:
            raise RuntimeError(f"the scheduler has done nothing for {still:.0f} s")

    async def __del__(self) -> None:
        """Drain: finish the iteration, commit it, hand the seat back. The engine stays for the next owner."""
        self._draining = True
        if not (self._ownership and self._ownership.stop()):
            self._life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._life

    async def _live(self) -> None:
        settings = self._settings
        folder = await asyncio.to_thread(resolve, settings.model, settings.cache_dir, log.info)
        model, text = pinned_info(settings.model, folder, settings.cache_dir), TextTables.load(folder)
        here = ray.util.get_node_ip_address()
        cluster, lifeline = cluster_id(), Lifeline(here)
        owner = f"{lifeline.address}/{os.getpid()}"
        pool = open_pool(settings, model)
        self._pool = PoolLink(pool)
        parts = Parts(settings, self._pool, model, text, Counters(), IterationCost(), here, lifeline)
        lost: float | None = None
        try:
            while not self._draining:
                seat = await take_seat(self._pool, cluster, settings.engines, owner, settings.lease)
                log.info("took seat %s under epoch %s", seat.name, seat.epoch)
                self._ownership = Ownership(parts, seat, lost)
                lost = await self._ownership.run()
                self._ownership = None
        finally:
            await pool.close()


def _log_death(life: asyncio.Task[None]) -> None:
    if not life.cancelled() and (error := life.exception()):
        log.error("the scheduler ended", exc_info=error)
