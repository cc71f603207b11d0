"""A real server and the reference model side by side: each call goes to both, and their replies must be equal."""

import asyncio
import dataclasses
import itertools

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from pool_helpers import FIGURES, Clock, ClockedPool, rung

from load.reference.pool import ReferencePool
from services.messages import Exchange
from services.pool.limits import Bounds
from services.pool.packing import unpack

SEATS = ("c/0", "c/1")
GATEWAYS = ("g", "h")
TENANTS = ("default", "é", "b")
LEASE = 1e6  # seconds, longer than any run lets pass, so that no lease expires
UNIT = 10_000.0  # seconds; what ranks a request is a multiple of it, plus what a run lets pass
names = itertools.count()


class PoolPair(RuleBasedStateMachine):
    """The test sets `url`. Replies are compared without epochs, and times in multiples of UNIT."""

    url = ""

    def open(self, limits):
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.real = ClockedPool(self.url, f"model-{next(names)}", limits, self.clock)
        self.reference = ReferencePool(self.clock, limits)
        self.epochs = {}  # seat -> its epoch in both pools
        self.calls = dict.fromkeys((*SEATS, *GATEWAYS), 0)
        self.last = {}  # seat -> its last exchange
        self.cursors = dict.fromkeys(GATEWAYS, ("0", "0"))
        self.ended = {g: set() for g in GATEWAYS}  # ids whose end the gateway has seen
        self.tokens = {}  # id -> tokens seen so far
        self.submitted = 0
        for seat in SEATS:
            self.acquire(seat, None)

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.real.close())
            self.loop.close()

    def each(self, name, *args):
        """The replies of both pools."""
        run = self.loop.run_until_complete
        return run(getattr(self.real, name)(*args)), run(getattr(self.reference, name)(*args))

    def both(self, name, *args):
        """The server's reply, which must equal that of the model."""
        real, reference = self.each(name, *args)
        assert real == reference
        return real

    # --- gateways ---

    def submit_to_both(self, submission):
        real, reference = self.each("submit", submission)
        refused = [reply.refused for reply in (real, reference)]
        if all(refused) and abs(refused[0].held - refused[1].held) <= 1:  # both are rounded up
            refused[1] = dataclasses.replace(refused[1], held=refused[0].held)
            reference = dataclasses.replace(reference, refused=refused[1])
        assert real == reference
        return real

    def same_events(self, gateway):
        """Read the gateway's events from both pools: they are equal, no token changes, and each sequence ends once."""
        real, reference = (
            self.loop.run_until_complete(pool.read_events(gateway, after, 0.001))
            for pool, after in zip((self.real, self.reference), self.cursors[gateway], strict=True)
        )
        assert real[0].split("-")[1:] == reference[0].split("-")[1:]

        # within an entry, the server may order requeued sequences differently
        def order(event):
            return (event.id, event.index, event.token is None)

        assert sorted(real[1], key=order) == sorted(reference[1], key=order)
        self.cursors[gateway] = (real[0], reference[0])
        for event in real[1]:
            if event.end:
                assert event.id not in self.ended[gateway], "a second end"
                self.ended[gateway].add(event.id)
            else:
                known = self.tokens.setdefault(event.id, [])
                if event.index < len(known):
                    assert known[event.index] == event.token, "a committed token changed"
                elif event.index == len(known):
                    known.append(event.token)

    def forget(self, submission):
        for sequence in submission.sequences:
            self.tokens.pop(sequence.id, None)
            for ended in self.ended.values():
                ended.discard(sequence.id)

    # --- schedulers ---

    def acquire(self, seat, dead):
        """Take a free seat, or one whose epoch (a pair, one for each pool) is known to be dead."""
        owner = f"owner-{next(names)}"
        pools = (self.real, self.reference)
        run = self.loop.run_until_complete
        pair = [run(pool.acquire(seat, owner, LEASE, dead[i] if dead else None)) for i, pool in enumerate(pools)]
        assert [(grant.granted, grant.owner) for grant in pair] == [(True, owner)] * 2
        assert [run(pool.acquire(seat, owner, LEASE)) for pool in pools] == pair, "a repeat gave another epoch"
        self.epochs[seat], self.calls[seat] = [grant.epoch for grant in pair], 0
        self.last.pop(seat, None)

    def release_both(self, seat, struck=(), removed=False):
        for pool, epoch in zip((self.real, self.reference), self.epochs[seat], strict=True):
            assert self.loop.run_until_complete(pool.release(seat, epoch, struck, removed, {"released": 1.0}))

    def exchange_now(self, seat, commits, room, idle, leap=1, holds=None):
        self.calls[seat] += leap
        call = self.calls[seat]
        more = {"figures": FIGURES, "counters": {"n": 1.0}, "gauges": {"g": float(call)}, "summary": f"step {call}"}
        self.last[seat] = Exchange(seat, "", call, commits, room, idle, **more, holds=holds)
        self.same_exchange(self.last[seat], self.epochs[seat])

    def same_exchange(self, exchange, epochs):
        replies = [
            self.loop.run_until_complete(pool.exchange(dataclasses.replace(exchange, epoch=epoch)))
            for pool, epoch in zip((self.real, self.reference), epochs, strict=True)
        ]
        now = self.clock.now()
        rounded = [dataclasses.replace(r, claims=[rounded_times(claim, now) for claim in r.claims]) for r in replies]
        assert rounded[0] == rounded[1]
        return replies[0]

    # --- always ---

    @invariant()
    def pools_agree(self):
        if not hasattr(self, "loop"):
            return
        real, reference = self.each("overview")
        seats = [[dataclasses.replace(seat, epoch="") for seat in o.seats] for o in (real, reference)]
        by_name = [sorted(each, key=lambda seat: seat.name) for each in seats]
        assert by_name[0] == by_name[1]
        assert dataclasses.replace(real, seats=[]) == dataclasses.replace(reference, seats=[])
        self.both("adapted")
        assert real.waiting + real.running + real.ended <= self.submitted
        assert real.waiting + real.running + real.ended == len(self.reference._sequences)
        self.reference._record_rates()
        for tenant in (None, *TENANTS):
            held, rate = self.loop.run_until_complete(counted(self.real, tenant))
            assert held == self.reference._held(tenant)
            if tenant and self.reference.limits.max_queue_wait:
                known = self.reference._rates[tenant]
                most = self.reference.limits.max_queue_wait
                expected = (known.backlog, self.reference._running(tenant), known.claimed, known.took)
                assert min(rate[-1] or most, most) == pytest.approx(self.reference._longest_wait(tenant), rel=1e-6)
                assert rate[:-1] == pytest.approx(expected, rel=1e-6, abs=1e-5)
        for seat in SEATS:
            heard = [self.loop.run_until_complete(rung(pool, seat)) for pool in (self.real, self.reference)]
            assert heard[0] == heard[1]


async def counted(pool, tenant=None):
    """The server's counts of a tenant, or of all: those that are bounded; then, without lines of batches, how many
    sequences wait and run, how many were claimed in how many seconds, and how long they may wait."""
    key = pool._prefix + (f"tenant:{tenant}" if tenant else "meta")
    packed = await pool._server.command("HGET", key, "counts")
    counts = unpack(packed) if packed else [0] * 16
    waiting, tokens, size, ended_size, streams, stored, _, *asked = counts
    assert await pool._server.command("ZCARD", f"{pool._prefix}ended" + (f":{tenant}" if tenant else "")) == stored
    rate = (*asked[:2], asked[-3], asked[-2] / 1e6, asked[-1] / 1e6)
    return Bounds(waiting, tokens, streams, size - ended_size, stored), rate


def rounded_times(claim, now):
    """The claim with its times in hundredths of a second: its rank, relative to its arrival, and how long it has
    waited. The clock advances by 1 us per call, and a run has fewer calls than half a hundredth."""
    after = claim.rank - (now - claim.waited)
    return dataclasses.replace(claim, rank=round(after, 2), waited=round(claim.waited, 2))
