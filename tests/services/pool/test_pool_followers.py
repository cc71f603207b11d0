"""Listeners: a group without one goes on, gets a grace or is cancelled, as its submission says."""

from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, STOP, Owner, all_events, commit, counts, group, let_time_pass, rung, stored

from services.messages import TokenEvent

SHORT = 0.01  # seconds; a grace or a registration that is over after a pause


@pytest.fixture
async def impatient(pools):
    """A pool whose grace is short."""
    return await pools(grace=SHORT)


def resumable(name, **more):
    return replace(group(name, **more), resumable=True)


def background(name, **more):
    return replace(group(name, **more), background=True)


async def heartbeat(pool):
    """A heartbeat of an unrelated gateway."""
    await pool.heartbeat("witness", 1, {})


async def die(pool, gateway="gateway"):
    """Let the registration of the silent gateway expire."""
    await pool.heartbeat(gateway, 1, {}, ttl=SHORT)
    let_time_pass(pool, 2 * SHORT)


async def test_a_group_without_a_listener_is_cancelled_at_once(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim(replace(ROOM, requests=1))
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (0, 1, 1)
    assert (await owner.exchange()).cancelled == ["r/0"]
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (0, 1, 1)


async def test_a_gateway_that_stopped_listening_gets_no_events(pool):
    await pool.submit(resumable("r"))
    owner = await Owner.take(pool)
    await owner.claim()
    await pool.unlisten("gateway", "r")
    await owner.exchange(commit("r/0", 0, 5))
    assert await all_events(pool) == []


async def test_a_group_goes_on_while_another_gateway_listens_to_one_of_its_sequences(pool):
    await pool.submit(group("r", n=2))
    await pool.listen("other", {"r/1": 0})
    await pool.unlisten("gateway", "r")
    await pool.unlisten("stranger", "r")
    assert await counts(pool) == (2, 0, 0)
    await pool.unlisten("other", "r")
    assert await counts(pool) == (0, 0, 2)


async def test_listening_to_ended_sequences_only_does_not_keep_the_rest(pool):
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 5, end=STOP))
    await pool.listen("other", {"r/0": 0})
    await pool.unlisten("gateway", "r")
    assert (await owner.exchange()).cancelled == ["r/1"]


async def test_a_background_group_needs_no_listener(impatient):
    pool = impatient
    await pool.submit(background("r"))
    await pool.unlisten("gateway", "r")
    await pool.submit(background("s"))
    await die(pool)
    await heartbeat(pool)
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (2, 0, 0)


async def test_a_resumable_group_is_cancelled_after_its_grace(impatient):
    pool = impatient
    await pool.submit(resumable("r", n=2))
    owner = await Owner.take(pool)
    await owner.claim(replace(ROOM, requests=1))
    await pool.unlisten("gateway", "r")
    assert await counts(pool) == (1, 1, 0)
    let_time_pass(pool, 2 * SHORT)
    reply = await owner.exchange(room=ROOM)
    assert (reply.cancelled, reply.claims) == (["r/0"], [])
    await owner.exchange(commit("r/0", 0, end=CANCELLED))
    assert await counts(pool) == (0, 0, 2)


@pytest.mark.parametrize("back", ["listen", "submit"])
async def test_listening_again_within_the_grace_keeps_the_group(impatient, back):
    pool = impatient
    await pool.submit(resumable("r"))
    await pool.unlisten("gateway", "r")
    if back == "listen":
        await pool.listen("other", {"r/0": 0})
    else:
        await pool.submit(replace(resumable("r"), gateway="other"))
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 0)
    await pool.unlisten("other", "r")
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


async def test_a_repeated_unlisten_does_not_extend_the_grace(pools):
    pool = await pools(grace=0.2)
    await pool.submit(resumable("r"))
    for _ in range(6):
        await pool.unlisten("gateway", "r")
        let_time_pass(pool, 0.05)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


@pytest.mark.parametrize("reaper", ["exchange", "acquire", "heartbeat"])
async def test_each_call_that_cancels_abandoned_groups_wakes_idle_seats(impatient, reaper):
    pool = impatient
    await pool.submit(resumable("r"))
    running, idle = await Owner.take(pool), await Owner.take(pool, "idle")
    await running.claim()
    await idle.exchange(idle=True)
    await pool.unlisten("gateway", "r")
    let_time_pass(pool, 2 * SHORT)
    if reaper == "exchange":
        assert (await running.exchange()).cancelled == ["r/0"]
    elif reaper == "acquire":
        await pool.acquire("another", "me", 100)
    else:
        await heartbeat(pool)
    assert await rung(pool, "idle")
    assert (await running.exchange()).cancelled == ["r/0"]


@pytest.mark.parametrize("submission", [group("r", n=2), resumable("r", n=2)])
async def test_groups_of_a_dead_gateway_get_a_grace(impatient, submission):
    pool = impatient
    await pool.submit(submission)
    await pool.submit(group("s"))
    await pool.listen("other", {"s/0": 0})
    await die(pool)
    await heartbeat(pool)
    assert await counts(pool) == (3, 0, 0)
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 2)
    assert (await stored(pool, "s/0")).end is None


async def test_groups_of_an_unregistered_gateway_get_a_grace(impatient):
    pool = impatient
    await pool.submit(group("r"))
    await pool.unregister("gateway")
    assert await counts(pool) == (1, 0, 0)
    await pool.listen("other", {"r/0": 0})
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (1, 0, 0)
    await pool.unregister("other")
    let_time_pass(pool, 2 * SHORT)
    await heartbeat(pool)
    assert await counts(pool) == (0, 0, 1)


async def test_a_group_that_moved_to_another_gateway_is_cancelled_once_that_stops_listening(impatient):
    pool = impatient
    await pool.submit(group("r"))
    await die(pool)
    await pool.listen("other", {"r/0": 0})
    await pool.unlisten("other", "r")
    assert await counts(pool) == (0, 0, 1)


async def test_an_outage_extends_registrations_and_graces(pools):
    pool = await pools(grace=8.0)
    await pool.submit(group("followed"))
    await pool.submit(resumable("left"))
    await pool.unlisten("gateway", "left")
    let_time_pass(pool, 20)
    await heartbeat(pool)
    assert await counts(pool) == (2, 0, 0)
    assert (await pool.overview()).gateways == 2
    for _ in range(3):  # calls arrive, so this time counts
        let_time_pass(pool, 4)
        await heartbeat(pool)
    assert await counts(pool) == (1, 0, 1)
    assert (await pool.overview()).gateways == 1


async def test_an_ended_group_needs_no_listener(pool):
    await pool.submit(group("r"))
    await pool.cancel("r")
    await pool.unlisten("gateway", "r")
    await pool.unlisten("gateway", "never")
    assert await all_events(pool) == [TokenEvent("r/0", 0, None, end=CANCELLED)]


async def test_many_abandoned_groups_are_cancelled_over_several_calls(pools):
    pool = await pools(grace=0.0)
    for i in range(150):
        await pool.submit(group(f"r{i}"))
    await pool.unregister("gateway")
    for _ in range(5):
        await heartbeat(pool)
    assert await counts(pool) == (0, 0, 150)
