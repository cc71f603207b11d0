"""Engines of different sizes on one pool: each claims what fits it, and what fits none ends."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from pool_helpers import STOP, Clock, Owner, commit, group

from services.messages import Room
from services.pool.reference.pool import ReferencePool
from services.pool.scripts import TOO_LARGE

BLOCK = 4
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4)  # blocks of each engine
lengths = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 60)), min_size=1, max_size=20)  # prompt, new tokens


async def serve_all(pool, sizes, lengths, turns):
    """Let engines of these sizes claim in the order of `turns`, then in turn, until nothing waits; each ends at once
    what it has claimed. Returns which engine ran each request."""
    owners = [await Owner.take(pool, f"c/{i}") for i in range(len(sizes))]
    for owner, blocks in zip(owners, sizes, strict=True):
        await owner.exchange(room=Room(0, 0, BLOCK, longest=blocks * BLOCK))
    for i, (prompt, new) in enumerate(lengths):
        await pool.submit(group(f"r{i}", prompt=range(prompt), new=new))
    ran = {}
    for at in [turn % len(sizes) for turn in turns] + [*range(len(sizes))] * len(lengths):
        room = Room(2, sizes[at], BLOCK, longest=sizes[at] * BLOCK)
        claims = (await owners[at].exchange(room=room)).claims
        ran |= {int(claim.id[1:].partition("/")[0]): at for claim in claims}
        if claims:
            await owners[at].exchange(*(commit(claim.id, 0, 7, end=STOP) for claim in claims))
    assert (await pool.overview()).waiting == 0
    return ran


async def check(pool, sizes, lengths, turns):
    ran = await serve_all(pool, sizes, lengths, turns)
    for i, (prompt, new) in enumerate(lengths):
        (snapshot,) = await pool.listen("gateway", {f"r{i}/0": 0})
        if prompt + new <= max(sizes) * BLOCK:
            assert prompt + new <= sizes[ran[i]] * BLOCK
            assert (snapshot.tokens, snapshot.end) == ([7], STOP)
        else:
            assert i not in ran
            assert snapshot.end == TOO_LARGE


@settings(max_examples=60)
@given(sizes=sizes, lengths=lengths, turns=st.lists(st.integers(0, 3), max_size=10))
def test_each_request_runs_on_an_engine_that_can_hold_it_or_ends_if_there_is_none(sizes, lengths, turns):
    asyncio.run(check(ReferencePool(Clock()), sizes, lengths, turns))


async def test_a_server_does_the_same(server_pools):
    await check(
        await server_pools(), [3, 20, 8], [(1, 60), (40, 30), (5, 5), (80, 60), (1, 10), (20, 10)], [0, 0, 2, 1]
    )
