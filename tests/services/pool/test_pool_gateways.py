"""Gateways: what they listen to, how long they stay registered, and how they learn that they missed events."""

import asyncio

import pytest
from pool_helpers import CANCELLED, STOP, Owner, all_events, commit, group, let_time_pass, stored

from services.messages import Room, Snapshot, TokenEvent
from services.pool.reference.pool import ReferencePool
from services.pool.reference.state import EVENTS_KEPT


async def _running(pool, gateway="gateway"):
    await pool.submit(group("r", gateway=gateway))
    owner = await Owner.take(pool)
    await owner.claim()
    return owner


async def test_a_snapshot_starts_at_the_requested_index(pool):
    owner = await _running(pool)
    await owner.exchange(commit("r/0", 0, 5, 6, 7))
    wanted = [await pool.listen("other", {"r/0": i, "unknown/0": 0}) for i in (0, 2, 3, 9)]
    assert [snapshots[0] for snapshots in wanted] == [
        Snapshot("r/0", True, 3, 0, [5, 6, 7]),
        Snapshot("r/0", True, 3, 2, [7]),
        Snapshot("r/0", True, 3, 3, []),
        Snapshot("r/0", True, 3, 3, []),
    ]
    assert all(snapshots[1] == Snapshot("unknown/0", False) for snapshots in wanted)


async def test_a_listener_gets_later_events(pool):
    owner = await _running(pool)
    await owner.exchange(commit("r/0", 0, 5))
    await pool.listen("other", {"r/0": 0})
    await owner.exchange(commit("r/0", 1, 6, end=STOP))
    assert await all_events(pool, "other") == [TokenEvent("r/0", 1, 6), TokenEvent("r/0", 2, None, end=STOP)]
    assert len(await all_events(pool, "gateway")) == 3


async def test_listening_twice_gives_each_event_once(pool):
    owner = await _running(pool)
    for _ in range(2):
        await pool.listen("gateway", {"r/0": 0})
    await owner.exchange(commit("r/0", 0, 5))
    assert len(await all_events(pool)) == 1


async def test_any_gateway_can_read_an_ended_sequence(pool):
    await pool.submit(group("r"))
    await pool.cancel("r")
    assert await pool.listen("late", {"r/0": 0}) == [Snapshot("r/0", True, 3, end=CANCELLED)]


async def test_the_first_heartbeat_says_that_events_may_be_missing(pool):
    assert not await pool.heartbeat("new", 1, {})
    assert await pool.heartbeat("new", 2, {})
    await pool.submit(group("r", gateway="by-submit"))
    assert not await pool.heartbeat("by-submit", 1, {})
    assert await pool.heartbeat("by-submit", 2, {})


async def test_a_repeated_heartbeat_gets_the_same_reply_and_counts_once(pool):
    assert [await pool.heartbeat("g", call, {"n": 1.5}) for call in (1, 1, 2, 2)] == [False, False, True, True]
    assert (await pool.overview()).counters == {"n": 3.0}


async def test_a_silent_gateway_is_forgotten_and_told_so(pool):
    owner = await _running(pool)
    await pool.heartbeat("gateway", 1, {}, ttl=0.01)
    let_time_pass(pool, 0.05)
    assert (await pool.overview()).gateways == 0
    await owner.exchange(commit("r/0", 0, 5))
    assert await all_events(pool) == []
    assert not await pool.heartbeat("gateway", 2, {})
    assert (await pool.listen("gateway", {"r/0": 0}))[0].tokens == [5]
    await owner.exchange(commit("r/0", 1, 6))
    assert await all_events(pool) == [TokenEvent("r/0", 1, 6)]


async def test_a_forgotten_gateway_that_submits_is_told_so_by_its_next_heartbeat(pool):
    await _running(pool)
    await pool.heartbeat("gateway", 1, {})
    assert await pool.heartbeat("gateway", 2, {}, ttl=0.01)
    let_time_pass(pool, 0.05)
    await pool.submit(group("s"))
    assert not await pool.heartbeat("gateway", 3, {})


async def test_events_of_a_later_registration_come_after_the_old_cursor(pool):
    owner = await _running(pool)
    await owner.exchange(commit("r/0", 0, 5))
    cursor, _ = await pool.read_events("gateway", "0", 1)
    await pool.unregister("gateway")
    await pool.listen("gateway", {"r/0": 1})
    await owner.exchange(commit("r/0", 1, 6))
    cursor, events = await pool.read_events("gateway", cursor, 1)
    assert events == [TokenEvent("r/0", 1, 6)]


async def test_an_unregistered_gateway_is_forgotten(pool):
    owner = await _running(pool)
    await pool.unregister("gateway")
    assert (await pool.overview()).gateways == 0
    await owner.exchange(commit("r/0", 0, 5))
    assert await all_events(pool) == []


async def test_reading_waits_for_an_event(pool):
    owner = await _running(pool)
    reading = asyncio.create_task(pool.read_events("gateway", "0", 60))
    await asyncio.sleep(0.01)
    await owner.exchange(commit("r/0", 0, 5))
    _, events = await asyncio.wait_for(reading, 30)
    assert events == [TokenEvent("r/0", 0, 5)]


async def test_a_reader_that_fell_behind_is_told_so_by_its_heartbeat(pool):
    await pool.submit(group("r", new=10_000))
    owner = await Owner.take(pool)
    await owner.exchange(room=Room(1, 1000, 16))
    await owner.exchange(commit("r/0", 0, 0))
    cursor, _ = await pool.read_events("gateway", "0", 1)
    await pool.heartbeat("gateway", 1, {})
    assert await pool.heartbeat("gateway", 2, {}, ttl=600)
    total = EVENTS_KEPT + 300
    for index in range(1, total):
        await owner.exchange(commit("r/0", index, index))
    _, events = await pool.read_events("gateway", cursor, 1)
    assert events[0].index > 1
    assert not await pool.heartbeat("gateway", 3, {})
    assert await pool.heartbeat("gateway", 4, {})
    assert (await stored(pool, "r/0")).tokens == list(range(total))


async def test_what_gateways_report_of_themselves_is_shown_while_they_are_registered(pool):
    await pool.heartbeat("g", 1, {}, gauges={"requests": 1.0})
    await pool.heartbeat("g", 2, {}, gauges={"requests": 2.0, "cpu": 0.5})
    await pool.heartbeat("g", 2, {}, gauges={"requests": 9.0})  # a repeat
    await pool.heartbeat("silent", 1, {})
    overview = await pool.overview()
    assert overview.gateway_gauges == {"g": {"requests": 2.0, "cpu": 0.5}}
    assert overview.gateways == 2
    await pool.unregister("g")
    overview = await pool.overview()
    assert (overview.gateways, overview.gateway_gauges) == (1, {})


async def test_gateways_say_their_settings_while_they_are_registered(pool):
    if isinstance(pool, ReferencePool):
        pytest.skip("no scheduler or gateway of a simulation reads settings")
    await pool.heartbeat("a", 1, {}, settings="of a")
    await pool.heartbeat("silent", 1, {})
    assert await pool.settings_of_gateways() == ["of a"]
    created = (await pool.overview()).created
    assert created > 0
    await pool.heartbeat("a", 2, {}, settings="of a")
    assert (await pool.overview()).created == created
    await pool.unregister("a")
    assert await pool.settings_of_gateways() == []
