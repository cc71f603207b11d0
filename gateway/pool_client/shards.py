"""Shards: the pools of one model at this gateway. Each request, key and lock is led to the shard that it belongs to.

- A request is found by its id, which names its shard.
- A request with an idempotency key, and a line of a batch, go to the shard of their slot. While the slot moves, they
  are first looked for in the shard that had it before.
- Any other request goes to the shard with the least load. If its pool is full or unavailable, the next one gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

from starlette.types import Receive

from gateway.errors import ApiError, GatewayStops, Kind
from gateway.executor import FairExecutor
from gateway.http.headers import Position
from gateway.pool_client.event_reader import EventReader
from gateway.pool_client.following import AbandonedRequests, Generation, Generations, not_found
from gateway.pool_client.heartbeat import Heartbeat
from gateway.pool_client.recovery import Recovery
from gateway.pool_client.request_record import RequestRecords
from gateway.validation import ValidatedRequest
from services.background import keep_running
from services.errors import PoolUnavailable
from services.messages import EngineFigures
from services.metrics import Counters
from services.overview import Overview, combined, silent
from services.pool.pool import RequestPool
from services.pool.shards import PoolShard, ShardState, Slots, in_shard, shard_of, slot_of
from services.sleep import reason_to_wait

T = TypeVar("T")

RECONNECT = 0.5  # seconds

log = logging.getLogger(__name__)


class Shards:
    """The pools of one model at this gateway. `receive`, in every method, reports when the client disconnects; None:
    the caller closes the generation."""

    def __init__(self, shards: Sequence[Shard], model: str = "") -> None:
        """`model`: its tag, which the ids of its requests have."""
        self.all = list(shards)
        self._model = model
        self._by_number = {shard.number: shard for shard in shards}
        self._slots = Slots({shard.number: shard.state for shard in shards})
        self._open = [shard for shard in shards if shard.state is not ShardState.DRAINING]  # to new requests

    # --- requests ---

    async def open(
        self, validated: ValidatedRequest, position: Position | None, receive: Receive | None, arrived_at: float
    ) -> Generation:
        """Submit a request, or resume it if the client has a position in its stream. Raises as `Generations` does."""
        if position is None:
            return await self.submit(validated, receive, arrived_at)
        shard = self.of(position.request)
        return await shard.generations.resume(self._at(validated, shard), position, receive, arrived_at)

    async def submit(
        self, validated: ValidatedRequest, receive: Receive | None, arrived_at: float | None, queue: str | None = None
    ) -> Generation:
        """Submit a request to its shard and follow it: see `Generations.submit`."""
        if validated.slot is not None:
            shard = await self._of_slot(validated, validated.slot)
            return await shard.generations.submit(self._at(validated, shard), receive, arrived_at, queue)
        *shards, last = self._by_load()
        sequences, repeatable = len(validated.submission.sequences), not validated.submission.background
        for shard in shards:
            shard.sends(sequences)
            try:
                return await shard.generations.submit(self._at(validated, shard), receive, arrived_at, queue)
            except ApiError as error:
                if error.kind is not Kind.POOL_FULL:
                    raise
            except PoolUnavailable:  # it may have arrived: in the background it would run to its end, for nobody
                if not repeatable:
                    raise
        last.sends(sequences)
        return await last.generations.submit(self._at(validated, last), receive, arrived_at, queue)

    def of(self, request: str) -> Shard:
        """The shard of a request of this model. Raises ApiError if there is none (any more)."""
        shard = self._by_number.get(shard_of(request))
        if shard is None:
            raise not_found(request)
        return shard

    def placed(self, request: str, slot: int) -> str:
        """The id of a request in the shard that gets the new requests of this slot."""
        return in_shard(request, self._slots.owner(slot), self._model)

    def pools_of_lock(self, name: str) -> list[RequestPool]:
        """The pools that keep the lock of this name: that of its slot and, while the slot moves, the one before; in the
        order of the shards' numbers."""
        slot = slot_of("", name)
        return [self._by_number[number].pool for number in sorted({self._slots.owner(slot), self._slots.former(slot)})]

    async def _of_slot(self, validated: ValidatedRequest, slot: int) -> Shard:
        owner, former = (self._by_number[number] for number in (self._slots.owner(slot), self._slots.former(slot)))
        if former is not owner:
            submission = self._at(validated, former).submission
            if await former.pool.knows(submission.request, submission.tenant, submission.idempotency_key):
                return former
        return owner

    def _by_load(self) -> list[Shard]:
        """The shards that can take a new request, the one with the least load first; one if none is available."""
        if len(self._open) == 1:
            return self._open
        loads = []
        for shard in self._open:
            try:
                loads.append((shard.load(), random.random(), shard))
            except PoolUnavailable:
                continue
        return [shard for *_, shard in sorted(loads)] or [random.choice(self._open)]

    def _at(self, validated: ValidatedRequest, shard: Shard) -> ValidatedRequest:
        """The request under its id in this shard."""
        submission = validated.submission
        request = in_shard(submission.request, shard.number, self._model)
        if request == submission.request:
            return validated
        sequences = [replace(one, id=f"{request}/{one.id.rpartition('/')[2]}") for one in submission.sequences]
        return replace(validated, submission=replace(submission, request=request, sequences=sequences))

    # --- overviews ---

    def overview(self) -> Overview:
        """The state of all shards as of the last second; of those that do not answer, what was last known. Raises
        PoolUnavailable if none answers."""
        parts, errors = [], []
        for shard in self.all:
            try:
                parts.append(shard.overview())
            except PoolUnavailable as error:
                errors.append(error)
                if known := shard.heartbeat.known:
                    parts.append(silent(known))
        if len(errors) == len(self.all):
            raise errors[0]
        return combined(parts)

    @property
    def read_at(self) -> float:
        """When `overview` was last read, in seconds of the loop's clock."""
        return max(shard.heartbeat.read_at for shard in self.all)

    async def latest_overviews(self) -> dict[int, Overview | None]:
        """The overview of each shard as of now, by its number; None for one that does not answer. Raises
        PoolUnavailable if none answers."""
        found = await asyncio.gather(*(or_error(shard.heartbeat.latest_overview()) for shard in self.all))
        errors = [one for one in found if isinstance(one, PoolUnavailable)]
        if len(errors) == len(found):
            raise errors[0]
        known = (None if isinstance(one, PoolUnavailable) else one for one in found)
        return {shard.number: one for shard, one in zip(self.all, known, strict=True)}

    @property
    def failure(self) -> str:
        """Why no engine has loaded the model, as of the last second; empty if one has, or if none said why."""
        views = [view for shard in self.all if (view := shard.heartbeat.known)]
        return "" if any(view.ready for view in views) else next((view.failure for view in views if view.failure), "")

    @property
    def known_figures(self) -> list[EngineFigures]:
        """The figures of the largest engine of each shard whose engines are known."""
        return [view.figures for shard in self.all if (view := shard.heartbeat.known) and view.figures]

    async def figures(self) -> EngineFigures | None:
        """What every request must fit, whichever shard it goes to: of each shard the largest engine counts, and of
        these the smallest. None if there never was an engine. Raises PoolUnavailable if none answers."""
        known = self.known_figures
        if not known:
            found = await asyncio.gather(*(or_error(shard.heartbeat.figures()) for shard in self.all))
            errors = [one for one in found if isinstance(one, PoolUnavailable)]
            if len(errors) == len(found):
                raise errors[0]
            known = [one for one in found if isinstance(one, EngineFigures)]
        return min(known, key=lambda each: each.longest, default=None)


async def or_error(read: Awaitable[T]) -> T | PoolUnavailable:
    """What was read, or why the pool does not answer."""
    try:
        return await read
    except PoolUnavailable as error:
        return error


class Shard:
    """One pool as this gateway uses it, with its reader of events, its heartbeat and its recovery.

    `gauges` returns what the gateway reports of itself, and `settings` is what it says of its settings."""

    def __init__(
        self,
        shard: PoolShard,
        gateway: str,
        counters: Counters,
        executor: FairExecutor,
        records: RequestRecords,
        gauges: Callable[[], dict[str, float]],
        settings: str,
    ) -> None:
        self.number, self.state = shard.number, shard.state
        self.pool = pool = shard.pool
        self._gateway = gateway
        self.reader = EventReader(pool, gateway)
        self._abandoned = AbandonedRequests(pool, gateway, self.reader.follows)
        self.generations = Generations(pool, self.reader, self._abandoned, counters, executor, records, self.waits_for)
        self._recovery = Recovery(pool, self.reader, self._abandoned)
        self.heartbeat = Heartbeat(pool, gateway, counters, gauges, self.reader.restart, settings)
        self._sent, self._sent_after = 0, 0.0  # sequences, and the heartbeat since which they were sent

    async def run(self) -> None:
        """Run until cancelled, also while the pool is unavailable."""
        await self._connect()
        await asyncio.gather(
            keep_running(self.heartbeat.run), keep_running(self.reader.run), keep_running(self._recovery.run)
        )

    async def stop(self) -> None:
        """Close the open streams, and unregister from the pool if it is available. To be called after `run` ended."""
        await self._abandoned.stop()
        self.reader.fail_all(GatewayStops())
        with contextlib.suppress(PoolUnavailable):
            await self.pool.unregister(self._gateway)
        await self.pool.close()

    def overview(self) -> Overview:
        """The overview of the last second, at no cost to the pool. Raises PoolUnavailable."""
        if self.reader.pool_unavailable:
            raise PoolUnavailable("the pool is unavailable")
        return self.heartbeat.last_overview()

    def waits_for(self) -> str:
        """Why no request of this pool can run, as of the last second, or nothing."""
        return reason_to_wait(self.heartbeat.known)

    def load(self) -> float:
        """The sequences of the pool for each engine that is ready, as of the last second, with those that this gateway
        has sent since. Infinite without an engine. Raises PoolUnavailable."""
        overview = self.overview()
        if self._sent_after != self.heartbeat.read_at:
            self._sent, self._sent_after = 0, self.heartbeat.read_at
        sequences, engines = overview.waiting + overview.running + self._sent, overview.ready_engines
        return sequences / engines if engines else inf

    def sends(self, sequences: int) -> None:
        """Count sequences that are about to be submitted."""
        self._sent += sequences

    async def _connect(self) -> None:
        while True:
            try:
                return await self.pool.connect()
            except PoolUnavailable as error:
                log.warning("waiting for the pool: %s", error)
            except Exception:
                log.exception("connecting to the pool failed; it is tried again")
            await asyncio.sleep(RECONNECT)
