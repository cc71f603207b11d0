"""`max_queue_wait`: a request that is expected to wait for longer is refused."""

from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, STOP, Owner, commit, group, let_time_pass, let_wait

from load.reference.service_rate import MIN_SAMPLE
from services.messages import Room
from services.pool.limits import Limits
from services.requests import BATCH_CLASS

MOST = 50  # seconds
WIDE = Room(MIN_SAMPLE, 10_000, 16)


async def refused(pool, submission):
    """The expected wait (s) for which the group was refused; None if it entered."""
    refusal = (await pool.submit(submission)).refused
    if refusal is None:
        return None
    assert (refusal.bound, refusal.own, refusal.limit, refusal.for_good) == ("queue_wait", True, MOST, False)
    return refusal.held


async def measured(pool, seconds, waiting, **more):
    """Let `waiting` sequences of tenant a wait after others were claimed, MIN_SAMPLE in so many seconds."""
    await pool.submit(replace(group("first", n=waiting + 2 * MIN_SAMPLE, tenant="a"), **more))
    owner = await Owner.take(pool)
    for _ in range(2):
        await let_wait(pool, seconds)
        ids = await owner.claim(WIDE)
        assert len(ids) == MIN_SAMPLE
        await owner.exchange(*(commit(id, 0, end=STOP) for id in ids))
    return owner


async def test_a_request_that_would_wait_for_too_long_is_refused(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await measured(pool, seconds=8.0, waiting=6 * MIN_SAMPLE)
    assert await refused(pool, group("within", n=8, tenant="a")) is None
    assert await refused(pool, group("above", tenant="a")) in range(52, 60)
    assert await refused(pool, group("another's", tenant="b")) is None
    assert await refused(pool, replace(group("nobody waits", tenant="a"), background=True)) is None
    assert await refused(pool, replace(group("a line", tenant="a"), priority=BATCH_CLASS)) is None
    assert await refused(pool, replace(group("lost", tenant="a"), waited=1.0)) is None
    assert (await pool.submit(group("within", tenant="a"))).existed
    assert await refused(pool, group("above", tenant="a")) is not None
    await pool.cancel("first")
    assert await refused(pool, group("above", tenant="a")) is None
    await pool.release(owner.seat, owner.epoch)


async def test_the_time_until_a_retry_is_that_until_a_tenth_is_free(server_pools):
    pool = await server_pools(Limits(max_queue_wait=MOST))
    await measured(pool, seconds=8.0, waiting=7 * MIN_SAMPLE)
    assert (await pool.submit(group("above", tenant="a"))).refused.retry_after in range(11, 20)


async def test_a_burst_on_an_idle_server_enters(pools):
    """Until its first claims, or a lack of claims, show how fast it is served."""
    pool = await pools(max_queue_wait=MOST)
    for name in "abc":
        assert await refused(pool, group(name, n=100, tenant="a")) is None
    await let_wait(pool, 4.5)
    assert await refused(pool, group("later", tenant="a")) in range(84, 120)


async def test_a_claim_that_leaves_nothing_waiting_shows_no_rate(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    for i in range(2 * MIN_SAMPLE):
        await pool.submit(group(f"one{i}", tenant="a"))
        await let_wait(pool, 20.0)
        [id] = await owner.claim(WIDE)
        await owner.exchange(commit(id, 0, end=STOP))
    await pool.submit(group("many", n=10 * MIN_SAMPLE, tenant="a"))
    assert await refused(pool, group("next", tenant="a")) is None


async def test_a_rate_is_remembered_for_a_while(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await measured(pool, seconds=8.0, waiting=1)
    await owner.claim(WIDE)
    await pool.submit(group("many", n=10 * MIN_SAMPLE, tenant="a"))
    assert await refused(pool, group("next", tenant="a")) in range(79, 89)
    await pool.cancel("many")
    await let_wait(pool, 3600.0)
    await pool.submit(group("many again", n=10 * MIN_SAMPLE, tenant="a"))
    assert await refused(pool, group("next", tenant="a")) is None


async def test_lines_of_batches_neither_wait_before_others_nor_show_a_rate(pools):
    pool = await pools(max_queue_wait=MOST)
    await pool.submit(replace(group("lines", n=10 * MIN_SAMPLE, tenant="a"), priority=BATCH_CLASS))
    owner = await Owner.take(pool)
    for _ in range(4):
        await let_wait(pool, 100.0)
        ids = await owner.claim(WIDE)
        await owner.exchange(*(commit(id, 0, end=STOP) for id in ids))
    for name in ("many", "next"):
        assert await refused(pool, group(name, n=4 * MIN_SAMPLE, tenant="a")) is None
    await pool.release(owner.seat, owner.epoch)
    await pool.cancel("many")
    await pool.cancel("next")
    await measured(pool, seconds=8.0, waiting=4 * MIN_SAMPLE)
    assert await refused(pool, group("behind no lines", tenant="a")) is None


async def test_only_requests_ahead_in_the_queue_count(pools):
    """A request of a late class may wait for long while requests of earlier classes are served."""
    pool = await pools(max_queue_wait=MOST, order="priority", ageing=60.0, ttft_target=10.0)
    await measured(pool, seconds=8.0, waiting=8 * MIN_SAMPLE, priority=5)
    let_time_pass(pool, 0.001)
    assert await refused(pool, replace(group("as late", tenant="a"), priority=5)) is not None
    assert await refused(pool, replace(group("early", tenant="a"), priority=0)) is None


async def test_an_outage_of_the_server_does_not_count(pools):
    pool = await pools(max_queue_wait=MOST)
    await measured(pool, seconds=1.0, waiting=2 * MIN_SAMPLE)
    await let_wait(pool, 1000.0)
    assert await refused(pool, group("waits long", tenant="a")) > 1000
    let_time_pass(pool, 1000.0)
    assert await refused(pool, group("after an outage", tenant="a")) is None


async def test_without_a_rate_the_wait_of_the_first_in_the_queue_counts(pools):
    pool = await pools(max_queue_wait=MOST)
    await pool.submit(
        replace(group("first", tenant="a"), waited=60.0)
    )  # a request that the pool lost enters without this check
    assert await refused(pool, group("second", tenant="a")) in range(60, 70)
    assert await refused(pool, group("another's", tenant="b")) is None

    owner = await Owner.take(pool)
    assert await owner.claim(replace(ROOM, requests=1)) == ["first/0"]
    assert await refused(pool, group("second", tenant="a")) is None
    await pool.release(owner.seat, owner.epoch)
    assert await refused(pool, group("third", tenant="a")) is None, "a requeued request does not wait for its turn"


async def test_the_wait_of_the_first_does_not_count_once_a_rate_is_known(pools):
    pool = await pools(max_queue_wait=MOST)
    await measured(pool, seconds=1.0, waiting=MIN_SAMPLE, waited=60.0)
    assert await refused(pool, group("next", tenant="a")) is None


async def test_the_wait_of_the_first_does_not_count_for_a_request_ahead_of_it(pools):
    pool = await pools(max_queue_wait=MOST, order="priority", ageing=60.0, ttft_target=10.0)
    await pool.submit(replace(group("late", tenant="a"), priority=5, waited=60.0))
    assert await refused(pool, replace(group("as late", tenant="a"), priority=5)) in range(60, 70)
    assert await refused(pool, replace(group("early", tenant="a"), priority=0)) is None
    assert await (await Owner.take(pool)).claim() == ["early/0", "late/0"]


@pytest.mark.parametrize("awake", [False, True])
async def test_the_time_in_which_all_engines_sleep_does_not_count(pools, awake):
    pool = await pools(max_queue_wait=MOST)
    sleeper, other = await Owner.take(pool), await Owner.take(pool, seat="c/1")
    await other.exchange(gauges={"ready": 1.0, "sleep": 0.0 if awake else 3.0})
    await pool.submit(group("wakes it", n=MIN_SAMPLE, tenant="a"))
    for _ in range(30):
        await let_wait(pool, 4.5)
        await sleeper.exchange(gauges={"ready": 1.0, "sleep": 2.0})
    waits = await refused(pool, group("waits, too", tenant="a"))
    assert waits > 100 if awake else waits is None


def waiting(request, seconds, **more):
    """A request of tenant a that has waited for so many seconds."""
    return replace(group(request, tenant="a"), waited=seconds, **more)


async def leave(pool, owner, seconds, waited, **more):
    """A client leaves `seconds` after its request was claimed, which had waited for `waited` seconds."""
    await pool.submit(waiting("left", waited, **more))
    assert await owner.claim(replace(ROOM, requests=1)) == ["left/0"]
    let_time_pass(pool, seconds)
    await pool.cancel("left")
    await owner.exchange(commit("left/0", 0, end=CANCELLED))
    await pool.delete("left")


async def limit(pool, tenant):
    """The most seconds that a request of the tenant may wait now, rounded up: the limit that a refusal names."""
    await pool.submit(waiting("waits", 1000.0, tenant=tenant))
    refusal = (await pool.submit(group("refused", tenant=tenant))).refused
    await pool.cancel("waits")
    await pool.delete("waits")
    return refusal.limit


async def test_requests_wait_no_longer_than_clients_of_the_tenant_are_seen_to_wait(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    for tenant in "ab":
        await pool.submit(replace(group(f"kept {tenant}", tenant=tenant), background=True))
    assert len(await owner.claim(WIDE)) == 2
    await leave(pool, owner, seconds=2.0, waited=18.0)
    assert await limit(pool, "a") == 39, "a quarter of the way from 50 to a quarter of 20"
    assert await limit(pool, "b") == MOST
    for _ in range(20):
        await leave(pool, owner, seconds=2.0, waited=18.0)
    assert await limit(pool, "a") == 6
    for i in range(10):
        await pool.submit(waiting(f"whole {i}", 30.0))
        assert await owner.claim(replace(ROOM, requests=1)) == [f"whole {i}/0"]
        await owner.exchange(commit(f"whole {i}/0", 0, 1, end=STOP))
    assert await limit(pool, "a") == 7, "a whole answer gives back a 300th of its wait"


async def test_only_a_client_that_leaves_because_of_the_wait_shows_how_long_clients_wait(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    await pool.submit(waiting("kept", 0.0, background=True))
    assert await owner.claim() == ["kept/0"]
    await leave(pool, owner, seconds=100.0, waited=18.0)  # it left for another reason
    await leave(pool, owner, seconds=0.0, waited=0.5)
    await leave(pool, owner, seconds=2.0, waited=18.0, resumable=True)  # it may come back
    await leave(pool, owner, seconds=2.0, waited=18.0, background=True)
    await pool.submit(waiting("waiting", 18.0))
    await pool.cancel("waiting")  # it cost nothing
    assert await limit(pool, "a") == MOST


async def sleep(pool, owner, turns):
    """All engines sleep for so many turns of 4.5 seconds."""
    for _ in range(turns):
        let_time_pass(pool, 4.5)
        await owner.exchange(gauges={"ready": 1.0, "sleep": 2.0})


async def test_a_client_that_leaves_because_engines_slept_shows_nothing(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    await pool.submit(waiting("kept", 0.0, background=True))
    assert await owner.claim() == ["kept/0"]
    await pool.submit(group("left", tenant="a"))
    await sleep(pool, owner, 5)
    assert await owner.claim() == ["left/0"]
    let_time_pass(pool, 2.0)
    await pool.cancel("left")
    await owner.exchange(commit("left/0", 0, end=CANCELLED))
    await pool.delete("left")
    await pool.submit(group("waits", tenant="a"))
    let_time_pass(pool, 90.0)
    assert (await pool.submit(group("refused", tenant="a"))).refused.limit == MOST


async def test_a_request_that_waited_because_engines_slept_does_not_go_behind(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    await pool.submit(waiting("kept", 0.0, background=True))
    assert await owner.claim() == ["kept/0"]
    for _ in range(10):
        await leave(pool, owner, seconds=2.0, waited=18.0)
    await pool.submit(group("first", tenant="a"))
    await sleep(pool, owner, 5)
    await pool.submit(group("second", tenant="a"))
    assert await owner.claim(replace(ROOM, requests=1)) == ["first/0"]


async def test_a_request_that_has_waited_longer_than_clients_do_goes_behind_once(pools):
    pool = await pools(max_queue_wait=MOST)
    owner = await Owner.take(pool)
    await pool.submit(waiting("kept", 0.0, background=True))
    assert await owner.claim() == ["kept/0"]
    for _ in range(30):
        await leave(pool, owner, seconds=2.0, waited=18.0)
    await pool.submit(group("fresh", tenant="a"))
    await pool.submit(waiting("late", 30.0))
    await pool.submit(waiting("nobody waits", 29.0, background=True))
    ids = [await owner.claim(replace(ROOM, requests=1)) for _ in range(2)]
    assert ids == [["nobody waits/0"], ["fresh/0"]]
    assert await refused(pool, group("next", tenant="a")) is None, "a late request does not go before others"
    await pool.cancel("next")
    let_time_pass(pool, 40.0)
    await pool.submit(group("after", tenant="a"))
    assert await owner.claim(replace(ROOM, requests=1)) == ["late/0"], "it goes before those that come 50 s after it"
