"""Random calls on a real server and on the reference model give the same replies and events (invariants 1, 2, 5)."""

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, initialize, multiple, rule, run_state_machine_as_test
from pool_helpers import CANCELLED, STOP, group, let_wait
from pool_pair import GATEWAYS, LEASE, TENANTS, UNIT, PoolPair, names
from pool_servers import ONE_OF_ALL

from services.messages import Commit, Exchange, Logprobs, Room
from services.pool.limits import Bounds, Limits
from services.requests import BATCH_CLASS, FEATURES

LIMITS = Limits(max_waiting=8, max_bytes=24_000, keep_ended=1000.0, grace=2.0)
# bounds the expected wait: some waits exceed it by far, and none is close to it
WAITING = dataclasses.replace(LIMITS, max_queue_wait=0.37 * UNIT)
# learns how long clients wait: no bound that they show is close to a wait
LEAVING = dataclasses.replace(LIMITS, max_queue_wait=5.37 * UNIT)
RANKED = dataclasses.replace(WAITING, order="priority", ageing=4 * UNIT, ttft_target=2 * UNIT)
# two tenants, which reach bounds of their own and of both
SHARED = dataclasses.replace(
    LIMITS, max_waiting_tokens=60, max_streams=6, max_stored=5, tenant_share=0.7, tenants={"é": Bounds(4, stored=2)}
)

seats, gateways = st.sampled_from(["c/0", "c/0", "c/0", "c/1"]), st.sampled_from(GATEWAYS)
wide = Room(8, 100, 4)
classes = st.integers(-2, 2) | st.just(BATCH_CLASS)
tenants = st.sampled_from(TENANTS)
lent = st.lists(st.tuples(classes, st.integers(0, 2), st.integers(0, 8)), max_size=3)
guests = {"guests": st.integers(0, 3), "tenants": st.lists(tenants, max_size=2)}
owing = st.builds(Room, st.integers(-2, 1), st.integers(-4, 20), st.just(4), st.booleans(), lent, **guests)
features = st.sampled_from([(), FEATURES])
longest = st.sampled_from([0, 8, 16, 24])
narrow = st.builds(Room, st.integers(0, 4), st.integers(0, 12), st.just(4), longest=longest, features=features)
rooms = st.one_of(
    st.just(wide), owing, narrow, st.builds(Room, st.integers(0, 4), st.integers(0, 12), st.sampled_from([1, 4, 16]))
)


class PoolMachine(PoolPair):
    """Calls of gateways and schedulers, in any order."""

    requests = Bundle("requests")
    dead = Bundle("dead")  # ended epochs, as (seat, real, reference)

    @initialize(limits=st.sampled_from([LIMITS, WAITING, LEAVING, RANKED, SHARED]))
    def start(self, limits):
        self.open(limits)
        for gateway, prompt in zip(GATEWAYS, ([1, 2], range(15)), strict=True):
            self.both("submit", group(f"first-{gateway}", 2, gateway, prompt))
            self.submitted += 2
        self.exchange_now("c/0", [], Room(3, 100, 4), idle=False)

    # --- gateways ---

    @rule(
        target=requests,
        gateway=gateways,
        n=st.integers(1, 3),
        prompt=st.lists(st.integers(0, 2**32 - 1), max_size=20),
        new=st.integers(1, 8),
        key=st.sampled_from([None, None, "a", "b"]),
        logprobs=st.sampled_from([None, 2]),
        needs=st.sampled_from([{}, {}, {}, {"cache_salt": "s"}, {"vector": 30}, {"adapter": "d"}]),
        output=st.sampled_from([0, 0, 1, 8]),
        resumable=st.booleans(),
        remember=st.booleans(),
        background=st.sampled_from([False, False, True]),
        priority=classes,
        ttft=st.sampled_from([0.0, 0.0, UNIT, 3 * UNIT]),
        waited=st.sampled_from([0.0, 0.0, UNIT, 6 * UNIT]),
        queue_timeout=st.sampled_from([0.0, 0.0, 2 * UNIT]),
        tenant=tenants,
    )
    def submit(self, gateway, n, prompt, new, key, logprobs, needs, output, resumable, background, **more):
        name = f"r{next(names)}"
        submission = group(name, n, gateway, prompt, new, key, body=name.encode(), logprobs=logprobs, **needs)
        sequences = [with_output(s, output) for s in submission.sequences]
        more |= {"sequences": sequences, "resumable": resumable, "background": background}
        submission = dataclasses.replace(submission, **more)
        reply = self.submit_to_both(submission)
        if reply.existed or reply.refused:
            return multiple()
        self.submitted += n
        return submission

    @rule(
        target=requests,
        crowd=st.lists(st.tuples(classes, st.integers(1, 12), st.integers(0, 8), tenants), min_size=3, max_size=6),
        seat=seats,
        room=owing,
    )
    def claim_from_a_crowd(self, crowd, seat, room):
        """Submit requests of all tenants, classes and lengths (of prompt and output), and claim with room for some."""
        submitted = []
        for priority, length, output, tenant in crowd:
            submission = group(f"r{next(names)}", 1, "g", range(length), 8, tenant=tenant)
            sequences = [with_output(s, output) for s in submission.sequences]
            submission = dataclasses.replace(submission, sequences=sequences, priority=priority)
            if not self.submit_to_both(submission).refused:
                submitted.append(submission)
        self.submitted += len(submitted)
        self.exchange_now(seat, [], room, False)
        return multiple(*submitted)

    @rule(submission=requests, gateway=gateways)
    def submit_again(self, submission, gateway):
        reply = self.submit_to_both(dataclasses.replace(submission, gateway=gateway))
        if not reply.existed and not reply.refused:  # it had been deleted, or dropped to make room
            self.submitted += len(submission.sequences)
            for each in GATEWAYS:
                self.read_events(each)
            self.forget(submission)

    @rule(units=st.integers(1, 3))
    def wait_long(self, units):
        """Time passes for waiting sequences only, not for leases and deadlines."""
        self.loop.run_until_complete(let_wait(self.real, units * UNIT))
        self.loop.run_until_complete(let_wait(self.reference, units * UNIT))

    @rule(seconds=st.sampled_from([0.5, 4.0, 60.0, 600.0]))
    def let_time_pass(self, seconds):
        """Registrations, graces and ended groups expire; more than 5 s without a call is an outage."""
        self.clock.advance(seconds)

    @rule(submission=requests)
    def cancel(self, submission):
        self.both("cancel", submission.request)

    @rule(submission=requests)
    def look_up(self, submission):
        self.both("group", submission.request)

    @rule(submission=requests, gateway=gateways)
    def unlisten(self, submission, gateway):
        self.both("unlisten", gateway, submission.request)

    @rule(submission=requests)
    def delete(self, submission):
        self.both("delete", submission.request)

    @rule(submission=requests, gateway=gateways, start=st.integers(0, 3))
    def listen(self, submission, gateway, start):
        snapshots = self.both("listen", gateway, {s.id: start for s in submission.sequences})
        for snapshot in snapshots:
            known = self.tokens.get(snapshot.id, [])
            shared = min(len(known) - snapshot.index, len(snapshot.tokens))
            if snapshot.known and shared > 0:
                assert snapshot.tokens[:shared] == known[snapshot.index :][:shared]

    @rule(gateway=gateways, repeat=st.booleans(), leap=st.sampled_from([1, 1, 2]))
    def heartbeat(self, gateway, repeat, leap):
        self.calls[gateway] += 0 if repeat and self.calls[gateway] else leap
        self.both("heartbeat", gateway, self.calls[gateway], {"beats": 1.0}, 10.0, {"age": float(self.calls[gateway])})

    @rule(gateway=gateways)
    def unregister(self, gateway):
        self.both("unregister", gateway)
        self.cursors[gateway] = ("0", "0")
        self.calls[gateway] = 0

    @rule(gateway=gateways)
    def read_events(self, gateway):
        self.same_events(gateway)

    @rule(name=st.sampled_from("ab"), holder=gateways, give_up=st.booleans())
    def hold(self, name, holder, give_up):
        real, reference = self.each("hold", name, holder, UNIT)
        assert (real is None) == (reference is None)
        if give_up:
            self.both("unhold", name, holder)

    @rule(version=st.integers(1, 3), registry=st.sampled_from([b"a", b"b"]))
    def adapt(self, version, registry):
        self.both("adapt", version, registry)
        self.both("adapters")

    # --- schedulers ---

    @rule(seat=seats)
    def acquire_a_held_seat(self, seat):
        for grant, epoch in zip(self.each("acquire", seat, "stranger", LEASE), self.epochs[seat], strict=True):
            assert (grant.granted, grant.epoch) == (False, epoch)

    @rule(target=dead, seat=seats, struck=st.booleans(), data=st.data())
    def release(self, seat, struck, data):
        held = self.epochs[seat]
        ids = data.draw(self.some_ids(seat)) if struck else []
        self.release_both(seat, ids, removed=data.draw(st.booleans()))
        self.acquire(seat, None)
        return seat, held

    @rule(engines=st.integers(1, 3), announce=st.sampled_from([None, False, True]))
    def scale(self, engines, announce):
        """Say how many engines there are to be, as an operator or (`announce`) as a configuration does."""
        if announce is None:
            self.both("scale", "c", engines)
        seats = self.both("engines", "c", 2 + engines % 2, bool(announce))
        assert seats.indices == [0, 1]

    @rule(seat=seats)
    def die_of_all(self, seat):
        """The engine dies repeatedly in an iteration of all sequences of the seat."""
        for _ in range(2):
            ids = sorted(self.reference._seats[seat].running)
            self.release_both(seat, ids)
            self.acquire(seat, None)
            self.exchange_now(seat, [], wide, False)

    @rule(seat=seats, times=st.sampled_from([2, 7]))
    def lose_the_owner(self, seat, times):
        """The owner of the seat dies repeatedly, for unknown reasons."""
        for _ in range(times):
            self.acquire(seat, self.epochs[seat])
            self.exchange_now(seat, [], wide, False)

    @rule(target=dead, seat=seats)
    def take_over(self, seat):
        held = self.epochs[seat]
        self.acquire(seat, held)
        return seat, held

    @rule(seat=seats, idle=st.booleans(), rounds=st.integers(1, 3), every=st.integers(3, 7))
    def iterate(self, seat, idle, rounds, every):
        """An exchange as schedulers make it: one or two tokens for each sequence, some ends, claims."""
        for _ in range(rounds):
            commits = []
            for i, (id, sequence) in enumerate(sorted(self.reference._seats[seat].running.items())):
                index = len(sequence.tokens)
                tokens = [1000 * i + index + n for n in range(1 + i % 2)]
                end = STOP if (i + index) % every == every - 1 else None
                commits.append(Commit(id, index, tokens, self.logprobs(sequence, tokens), end))
            self.exchange_now(seat, commits, wide, idle)

    @rule(seat=seats, room=rooms, idle=st.booleans(), leap=st.sampled_from([1, 1, 1, 2]), data=st.data())
    def exchange(self, seat, room, idle, leap, data):
        self.exchange_now(seat, self.strange_commits(seat, data), room, idle, leap)

    @rule(seat=seats, room=rooms, leap=st.sampled_from([1, 2]), commits=st.booleans(), data=st.data())
    def exchange_with_holds(self, seat, room, leap, commits, data):
        """An exchange after an outage: the caller does not hold what the pool recorded."""
        holds = data.draw(self.some_ids(seat))
        self.exchange_now(seat, self.strange_commits(seat, data) if commits else [], room, True, leap, holds)

    def some_ids(self, seat):
        running, known = sorted(self.reference._seats[seat].running), sorted(self.reference._sequences)
        return st.lists(st.sampled_from([*running, *running, *known, "never/0"]), max_size=4)

    @rule(seat=seats)
    def repeat_exchange(self, seat):
        if seat in self.last:
            self.same_exchange(self.last[seat], self.epochs[seat])

    @rule(past=consumes(dead), room=rooms, data=st.data())
    def exchange_under_a_dead_epoch(self, past, room, data):
        seat, epochs = past
        self.both("cancel", "never")  # the first call after an outage extends registrations
        before = self.loop.run_until_complete(self.real.overview())
        late = Exchange(seat, "", 99, self.strange_commits(seat, data), room, counters={"late": 1.0}, summary="late")
        assert not self.same_exchange(late, epochs).owned
        assert self.loop.run_until_complete(self.real.overview()) == before

    def strange_commits(self, seat, data):
        """Commits to sequences of any seat: at the next index, before it with other tokens, or after a gap."""
        commits = []
        known = self.reference._sequences
        running = sorted(self.reference._seats[seat].running) or sorted(known)
        ids = data.draw(st.lists(st.sampled_from(running), min_size=1, max_size=4)) if running else []
        ids += data.draw(st.lists(st.sampled_from(sorted(known)), max_size=1)) if known else []
        for id in ids:
            sequence = known[id]
            shift = data.draw(st.sampled_from([0, 0, 0, -1, -2, 1]))
            tokens = data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=3))
            end = data.draw(st.sampled_from([None, None, STOP, CANCELLED]))
            index = max(len(sequence.tokens) + shift, 0)
            commits.append(Commit(id, index, tokens, self.logprobs(sequence, tokens), end))
        return commits

    def logprobs(self, sequence, tokens):
        if sequence.new.sampling.logprobs is None:
            return None
        return [Logprobs(-float(i), [(token, -0.5)]) for i, token in enumerate(tokens)]


def with_output(sequence, count):
    """The sequence as a gateway puts it back after the pool lost it: with the tokens that it has."""
    tokens = list(range(min(count, sequence.sampling.max_new_tokens)))
    logprobs = None if sequence.sampling.logprobs is None else [Logprobs(-1.0, [(t, -0.5)]) for t in tokens]
    return dataclasses.replace(sequence, output=tokens, logprobs=logprobs)


@pytest.mark.parametrize("binary", ONE_OF_ALL)
def test_a_server_behaves_as_the_reference_model(binary, servers):
    PoolMachine.url = servers[binary]
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],  # no shrinking, which takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
