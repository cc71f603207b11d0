"""Followers: a group that no gateway listens to goes on, gets a grace or ends, as it was submitted."""

import asyncio
from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, STOP, Owner, all_events, commit, counts, group, let_time_pass, rung, stored

from services.messages import TokenEvent

SHORT = 0.01  # seconds, of a grace or a registration that is over after a pause


@pytest.fixture
async def impatient(pools):
    """A pool whose grace is short."""
    return await pools(grace=SHORT)


def resumable(name, **more):
    return replace(group(name, **more), resumable=True)


def background(name, **more):
    return replace(group(name, **more), background=True)


async def heartbeat(pool):
    """Of a gateway that has nothing to do with anything."""
    await pool.heartbeat("witness", 1, {})


async def die(pool, gateway="gateway"):
    """The gateway falls silent until its registration has run out."""
    await pool.heartbeat(gateway, 1, {}, ttl=SHORT)
    await asyncio.sleep(2 * SHORT)


async def test_a_group_that_nobody_follows_is_cancelled_at_once(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim(replace(ROOM, requests=1))
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (0, 1, 1)
    assert (await owner.exchange()).cancelled == ["r/0"]
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (0, 1, 1)


async def test_who_has_left_hears_no_more(pool):
    await pool.submit(resumable("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.unlisten("gateway", "r")
    await owner.exchange(commit("r/0", 0, 5))
    assert await all_events(pool) == []


async def test_a_group_goes_on_while_another_gateway_follows_one_of_it(pool):
    await pool.submit(group("r", n=2))
    await pool.listen("other", {"r/1": 0})
    await pool.unlisten("gateway", "r")
    await pool.unlisten("stranger", "r")
    assert await counts(pool) == (2, 0, 0)
    await pool.unlisten("other", "r")
    assert await counts(pool) == (0, 0, 2)


async def test_who_follows_only_what_ended_does_not_keep_the_rest(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 5, end=STOP))
    await pool.listen("other", {"r/0": 0})
    await pool.unlisten("gateway", "r")
    assert (await owner.exchange()).cancelled == ["r/1"]


async def test_a_background_group_needs_no_follower(impatient):
    pool = impatient
    await pool.submit(background("r"))
    await pool.unlisten("gateway", "r")
    await pool.submit(background("s"))
    await die(pool)
    await heartbeat(pool)
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (2, 0, 0)


async def test_a_resumable_group_is_cancelled_after_its_grace(impatient):
    pool = impatient
    await pool.submit(resumable("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim(replace(ROOM, requests=1))
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (1, 1, 0)
    await asyncio.sleep(2 * SHORT)
    reply = await owner.exchange(room=ROOM)
    assert (reply.cancelled, reply.claims) == (["r/0"], [])
    await owner.exchange(commit("r/0", 0, end=CANCELLED))
    assert await counts(pool) == (0, 0, 2)


@pytest.mark.parametrize("back", ["listen", "submit"])
async def test_who_comes_back_in_time_calls_the_cancellation_off(impatient, back):
    pool = impatient
    await pool.submit(resumable("r"))
    await pool.unlisten("gateway", "r")
    if back == "listen":
        await pool.listen("other", {"r/0": 0})
    else:
        await pool.submit(replace(resumable("r"), gateway="other"))
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 0)
    await pool.unlisten("other", "r")
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


async def test_a_repeated_detach_does_not_lengthen_the_grace(pools):
    pool = await pools(grace=0.2)
    await pool.submit(resumable("r"))
    for _ in range(6):
        await pool.unlisten("gateway", "r")
        await asyncio.sleep(0.05)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


@pytest.mark.parametrize("reaper", ["exchange", "acquire", "heartbeat"])
async def test_who_reaps_ends_what_was_abandoned_and_wakes_its_seat(impatient, reaper):
    pool = impatient
    await pool.submit(resumable("r"))
    running, idle = await Owner.take(pool), await Owner.take(pool, "idle")
    await running.claim()
    await idle.exchange(idle=True)
    await pool.unlisten("gateway", "r")
    await asyncio.sleep(2 * SHORT)
    if reaper == "exchange":
        assert (await running.exchange()).cancelled == ["r/0"]
    elif reaper == "acquire":
        await pool.acquire("another", "me", 100)
    else:
        await heartbeat(pool)
    assert await rung(pool, "idle")
    assert (await running.exchange()).cancelled == ["r/0"]


@pytest.mark.parametrize("submission", [group("r", n=2), resumable("r", n=2)])
async def test_what_a_dead_gateway_followed_gets_a_grace(impatient, submission):
    pool = impatient
    await pool.submit(submission)
    await pool.submit(group("s"))
    await pool.listen("other", {"s/0": 0})
    await die(pool)
    await heartbeat(pool)
    assert await counts(pool) == (3, 0, 0)
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 2)
    assert (await stored(pool, "s/0")).end is None


async def test_what_an_unregistered_gateway_followed_gets_a_grace(impatient):
    pool = impatient
    await pool.submit(group("r"))
    await pool.unregister("gateway")
    assert await counts(pool) == (1, 0, 0)
    await pool.listen("other", {"r/0": 0})
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 0)
    await pool.unregister("other")
    await asyncio.sleep(2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


async def test_the_followers_of_a_dead_gateway_who_leave_the_next_one_are_gone_at_once(impatient):
    pool = impatient
    await pool.submit(group("r"))
    await die(pool)
    await pool.listen("other", {"r/0": 0})
    await pool.unlisten("other", "r")
    assert await counts(pool) == (0, 0, 1)


async def test_an_outage_is_no_time_for_gateways_and_graces(pools):
    pool = await pools(grace=8.0)
    await pool.submit(group("followed"))
    await pool.submit(resumable("left"))
    await pool.unlisten("gateway", "left")
    await let_time_pass(pool, 20)
    await heartbeat(pool)
    assert await counts(pool) == (2, 0, 0)
    assert (await pool.overview()).gateways == 2
    for _ in range(3):  # in use: time that counts
        await let_time_pass(pool, 4)
        await heartbeat(pool)
    assert await counts(pool) == (1, 0, 1)
    assert (await pool.overview()).gateways == 1


async def test_an_ended_group_needs_no_follower(pool):
    await pool.submit(group("r"))
    await pool.cancel("r")
    await pool.unlisten("gateway", "r")
    await pool.unlisten("gateway", "never")
    assert await all_events(pool) == [TokenEvent("r/0", 0, None, end=CANCELLED)]


async def test_many_are_cancelled_over_some_calls(pools):
    pool = await pools(grace=0.0)
    for i in range(150):
        await pool.submit(group(f"r{i}"))
    await pool.unregister("gateway")
    for _ in range(5):
        await heartbeat(pool)
    assert await counts(pool) == (0, 0, 150)
