"""Random calls on a pool whose server dies, fills up, and whose clock jumps: what was acknowledged stays.

It runs on a server that syncs each write, so nothing that was answered may be missing. Callers repeat a call that was
not answered, as gateways and schedulers do. At the end everything can be ended and forgotten, and no key is left over.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from effort import effort
from faulty_server import FaultyServer
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parent.parent / "services" / "pool"))
from pool_helpers import FIGURES, NO_ROOM, STOP, group, keys

from services.errors import PoolUnavailable
from services.messages import Claim, Commit, Exchange, ExchangeReply, Room, Submission
from services.pool.limits import Limits
from services.pool.pool import RequestPool
from services.pool.server.binaries import choose_server
from services.pool.server.pool_server import PoolServer

LEASE = 5.0
ROOM = Room(6, 100, 16)
LIMITS = Limits(max_waiting=50, max_bytes=1 << 20, keep_ended=1000.0, grace=1000.0)
TENANTS = ("default", "é")
GATEWAYS = ("g", "h")
# what may be left when all requests are forgotten
LASTING = (
    "meta",
    "counters",
    "turn:",
    "seats",
    "seat:",
    "leases",
    "gateways",
    "gateway:",
    "events:",
    "idle",
    "bell:",
    "orphans",
)
pools = itertools.count()


class Scheduler:
    """The owner of a seat, as the pool sees it: it makes token `1000 * choice + index`, so that a wrong one shows."""

    def __init__(self, seat: str) -> None:
        self.seat, self.epoch, self.call = seat, "", 0
        self.held: dict[str, int] = {}  # id -> tokens that it has
        self.synced = False  # whether the pool was told what it holds

    def drop(self) -> None:
        self.epoch, self.call, self.held, self.synced = "", 0, {}, False


class FaultyPool(FaultyServer):
    """`server` and `loop` are set by the test."""

    @initialize()
    def start(self) -> None:
        self.pool = RequestPool(self.server.url, f"faults-{next(pools)}", LIMITS)
        self.numbers = itertools.count()  # of this run alone: the same steps are the same calls
        self.schedulers = {seat: Scheduler(seat) for seat in ("x", "y")}
        self.groups: dict[str, Submission] = {}  # accepted, and not deleted
        self.tokens: dict[str, int] = {}  # id -> tokens whose commit was answered
        self.ended: set[str] = set()  # ids whose end was answered

    # --- gateways ---

    @rule(
        gateway=st.sampled_from(GATEWAYS),
        n=st.integers(1, 3),
        new=st.integers(1, 6),
        tenant=st.sampled_from(TENANTS),
        key=st.sampled_from([None, None, "key"]),
        background=st.booleans(),
    )
    def submit(self, gateway: str, n: int, new: int, tenant: str, key: str | None, background: bool) -> None:
        asked = group(f"r{next(self.numbers)}", n, gateway, range(next(self.numbers) % 40 + 1), new, key, tenant)
        asked = replace(asked, background=background, resumable=True)
        if self.full:
            with pytest.raises(PoolUnavailable, match="memory"):
                self.run(self.pool.submit(asked))
            return
        reply = self.ask(lambda: self.pool.submit(asked))
        if reply.refused is None and reply.request == asked.request:
            self.groups[asked.request] = asked
        elif reply.refused is None:
            assert self.groups[reply.request].idempotency_key == key

    @rule(data=st.data(), gateway=st.sampled_from(GATEWAYS))
    def submit_again(self, data: Any, gateway: str) -> None:
        if self.groups and not self.full:
            known = data.draw(st.sampled_from(sorted(self.groups)))
            reply = self.ask(lambda: self.pool.submit(replace(self.groups[known], gateway=gateway)))
            assert (reply.existed, reply.request) == (True, known)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if self.groups:
            request = data.draw(st.sampled_from(sorted(self.groups)))
            self.ask(lambda: self.pool.cancel(request))

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        if self.groups:
            request = data.draw(st.sampled_from(sorted(self.groups)))
            self.ask(lambda: self.pool.delete(request))
            del self.groups[request]
            assert self.ask(lambda: self.pool.group(request)) is None

    @rule(gateway=st.sampled_from(GATEWAYS), data=st.data())
    def unlisten(self, gateway: str, data: Any) -> None:
        if self.groups:
            request = data.draw(st.sampled_from(sorted(self.groups)))
            self.ask(lambda: self.pool.unlisten(gateway, request))

    # --- schedulers ---

    @rule(seat=st.sampled_from("xy"), tokens=st.integers(0, 2), every=st.integers(2, 5), repeat=st.booleans())
    def iterate(self, seat: str, tokens: int, every: int, repeat: bool) -> None:
        """Some tokens for all that a scheduler has, some end; it claims; perhaps the answer is lost and asked again."""
        scheduler = self.schedulers[seat]
        if not scheduler.epoch and not self.acquire(scheduler):
            return
        commits, room = [], NO_ROOM
        if scheduler.synced:
            commits, room = [self.commit(scheduler, id, tokens, every) for id in scheduler.held], ROOM
        holds = None if scheduler.synced else sorted(scheduler.held)
        scheduler.call += 1
        asked = Exchange(seat, scheduler.epoch, scheduler.call, commits, room, figures=FIGURES, holds=holds)
        reply = self.ask(lambda: self.pool.exchange(asked))
        if repeat:
            again = self.ask(lambda: self.pool.exchange(asked))
            assert [claim.id for claim in again.claims] == [claim.id for claim in reply.claims]
            assert (again.owned, again.foreign, again.have) == (reply.owned, reply.foreign, reply.have)
        if reply.owned:
            self.hear(scheduler, commits, reply)
        else:
            scheduler.drop()

    def hear(self, scheduler: Scheduler, commits: list[Commit], reply: ExchangeReply) -> None:
        assert not reply.have, "the pool lacks tokens whose commit it had answered"
        assert not reply.lost
        scheduler.synced = True
        for id in reply.foreign:
            scheduler.held.pop(id, None)
        for one in commits:
            if one.id in scheduler.held:
                scheduler.held[one.id] = one.index + len(one.tokens)
                self.tokens[one.id] = max(self.tokens.get(one.id, 0), scheduler.held[one.id])
                if one.end:
                    del scheduler.held[one.id]
                    self.ended.add(one.id)
        for claim in reply.claims:
            self.take(scheduler, claim)

    def commit(self, scheduler: Scheduler, id: str, count: int, every: int) -> Commit:
        index, choice = scheduler.held[id], int(id.rpartition("/")[2])
        tokens = [1000 * choice + index + i for i in range(count)]
        over = (index + count) % every == every - 1 or index + count >= 6
        return Commit(id, index, tokens, None, STOP if over else None)

    def take(self, scheduler: Scheduler, claim: Claim) -> None:
        choice = int(claim.id.rpartition("/")[2])
        assert claim.id not in self.ended, "an ended sequence was claimed"
        assert all(claim.id not in other.held for other in self.schedulers.values() if other.epoch), "claimed twice"
        assert claim.output == [1000 * choice + i for i in range(len(claim.output))]
        assert len(claim.output) >= self.tokens.get(claim.id, 0)
        scheduler.held[claim.id] = len(claim.output)

    def acquire(self, scheduler: Scheduler) -> bool:
        grant = self.ask(lambda: self.pool.acquire(scheduler.seat, f"owner-{next(self.numbers)}", LEASE))
        if grant.granted:
            scheduler.drop()
            scheduler.epoch = grant.epoch
        return grant.granted

    @rule(seat=st.sampled_from("xy"), strike=st.booleans())
    def release(self, seat: str, strike: bool) -> None:
        scheduler = self.schedulers[seat]
        if scheduler.epoch:
            struck = sorted(scheduler.held)[:1] if strike else []
            self.ask(lambda: self.pool.release(seat, scheduler.epoch, struck))
            scheduler.drop()

    @rule(seat=st.sampled_from("xy"))
    def take_over(self, seat: str) -> None:
        """The scheduler died, and its successor knows."""
        scheduler = self.schedulers[seat]
        if scheduler.epoch:
            dead, owner = scheduler.epoch, f"owner-{next(self.numbers)}"
            grant = self.ask(lambda: self.pool.acquire(seat, owner, LEASE, dead))
            assert grant.granted
            scheduler.drop()
            scheduler.epoch = grant.epoch

    # --- always ---

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "pool") or self.doomed:
            return
        ids = [sequence.id for asked in self.groups.values() for sequence in asked.sequences]
        if ids:
            snapshots = self.ask(lambda: self.pool.listen("reader", dict.fromkeys(ids, 0)))
            for snapshot in snapshots:
                choice = int(snapshot.id.rpartition("/")[2])
                assert snapshot.known, f"{snapshot.id} was accepted and is gone"
                assert snapshot.tokens == [1000 * choice + i for i in range(len(snapshot.tokens))]
                assert len(snapshot.tokens) >= self.tokens.get(snapshot.id, 0)
                assert snapshot.end is not None or snapshot.id not in self.ended, f"{snapshot.id} had ended"
        overview = self.ask(self.pool.overview)
        assert overview.bytes >= 0
        assert min(overview.waiting, overview.running, overview.ended) >= 0

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.fill(False)
        for request in list(self.groups):
            self.ask(partial(self.pool.cancel, request))
        for seat in self.schedulers:
            self.release(seat, False)
        for request in list(self.groups):
            self.ask(partial(self.pool.delete, request))
        overview = self.ask(self.pool.overview)
        assert (overview.waiting, overview.running, overview.ended, overview.bytes) == (0, 0, 0, 0)
        left = [key for key in self.run(keys(self.pool)) if not key.startswith(LASTING)]
        assert not left, f"left over: {left}"
        self.run(self.pool.close())


def test_what_was_answered_stays(tmp_path: Path) -> None:
    FaultyPool.loop = asyncio.new_event_loop()
    FaultyPool.server = PoolServer(choose_server(), tmp_path, "strict")
    FaultyPool.loop.run_until_complete(FaultyPool.server.start())
    try:
        run_state_machine_as_test(FaultyPool, settings=effort(4))
    finally:
        FaultyPool.loop.run_until_complete(FaultyPool.server.stop())
        FaultyPool.loop.close()
