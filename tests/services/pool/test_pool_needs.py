"""What a request needs of its engine: an engine whose build does not have it never claims the request."""

import dataclasses
from dataclasses import replace

import pytest
from pool_helpers import CANCELLED, ROOM, STOP, Owner, commit, counts, group, let_time_pass, size, stored

from services.messages import Room
from services.pool.scripts import UNSERVED
from services.requests import FEATURES, OF_ADAPTERS, OF_VECTORS

LONGEST = 400
EARLIER = replace(ROOM, longest=LONGEST)
LATER = replace(EARLIER, features=FEATURES)


def salted(name, **more):
    return group(name, cache_salt="s", **more)


@pytest.fixture
async def both(pool):
    """A seat of an earlier build, which does not have the feature, and one of a later build."""
    earlier, later = await Owner.take(pool, "earlier"), await Owner.take(pool, "later")
    for owner, room in ((earlier, EARLIER), (later, LATER)):
        await owner.exchange(room=replace(room, requests=0))
    return earlier, later


@pytest.mark.parametrize(
    ("need", "of_it"),
    [
        ({"cache_salt": "s"}, FEATURES),
        ({"adapter": "5d" * 32}, OF_ADAPTERS),
        ({"vector": 3, "logprobs": 0}, OF_VECTORS),
    ],
)
async def test_only_an_engine_that_has_the_feature_claims(pool, need, of_it):
    without = replace(EARLIER, features=tuple(set(FEATURES) - set(of_it)))
    earlier, later = await Owner.take(pool, "earlier"), await Owner.take(pool, "later")
    for owner, room in ((earlier, without), (later, LATER)):
        await owner.exchange(room=replace(room, requests=0))
    await pool.submit(group("needy", n=2, **need))
    await pool.submit(group("plain"))
    assert await earlier.claim(without) == ["plain/0"]
    [claim, _] = (await later.exchange(room=LATER)).claims
    assert claim.id == "needy/0"
    assert need.items() <= dataclasses.asdict(claim.sampling).items()
    assert claim.sampling.max_new_tokens == 4


async def test_it_ends_with_an_error_where_no_engine_has_the_feature(pool):
    owner = await Owner.take(pool)
    await pool.submit(salted("salted"))
    await pool.submit(group("plain"))
    assert await owner.claim(EARLIER) == ["plain/0"]
    assert (await stored(pool, "salted/0")).end == UNSERVED


async def test_it_waits_for_an_engine_that_has_not_said_what_it_has(pool):
    owner = await Owner.take(pool)
    await Owner.take(pool, "loading")
    await pool.submit(salted("salted"))
    assert await owner.claim(EARLIER) == []
    assert (await stored(pool, "salted/0")).end is None


async def test_it_keeps_its_need_when_its_seat_dies(pool, both):
    earlier, later = both
    await pool.submit(salted("salted"))
    assert await later.claim(LATER) == ["salted/0"]
    await later.exchange(commit("salted/0", 0, 7))
    await pool.release("later", later.epoch)
    assert await earlier.claim(EARLIER) == []
    let_time_pass(pool, 4)
    assert await earlier.claim(EARLIER) == []
    again = await Owner.take(pool, "later")
    [claim] = (await again.exchange(room=LATER)).claims
    assert claim.output == [7]


async def test_size_and_features_are_of_one_engine(pool, both):
    """A large engine without the feature does not keep a request that its only engine is too small for."""
    earlier, later = both
    large = replace(EARLIER, longest=4 * LONGEST, blocks=200)
    await earlier.exchange(room=replace(large, requests=0))
    await pool.submit(salted("long", new=2 * LONGEST))
    assert await later.claim(LATER) == []
    assert (await stored(pool, "long/0")).end == UNSERVED


@pytest.mark.parametrize("cancelled", [True, False])
async def test_its_bytes_are_counted_as_those_of_others(pool, both, cancelled):
    _, later = both
    request = salted("salted", new=100)
    await pool.submit(request)
    assert (await pool.overview()).bytes == size(request)
    await pool.submit(group("plain", new=100))
    with_both = (await pool.overview()).bytes
    await later.claim(replace(LATER, blocks=1000))
    for name in ("plain", "salted"):
        end = CANCELLED if cancelled else STOP
        await later.exchange(commit(f"{name}/0", 0, 5, end=end))
        freed = with_both - (await pool.overview()).bytes
        with_both -= freed
        assert freed > 99 * 8
    assert await counts(pool) == (0, 0, 2)


async def test_a_build_that_compares_tokens_alone_leaves_it_to_another_seat(server_pools):
    """Its script claims what has at most as many tokens as its engine, and ends what no other seat has room for."""
    pool = await server_pools()
    await (await Owner.take(pool, "later")).exchange(room=Room(0, 0, 16, longest=LONGEST, features=FEATURES))
    await pool.submit(salted("salted"))
    await pool.submit(group("plain"))

    async def number(key, field):
        return int(await pool._server.command("HGET", f"{pool._prefix}{key}", field))

    assert await number("seq:plain/0", "tokens_max") == 7
    assert LONGEST < await number("seq:salted/0", "tokens_max") <= await number("seat:later", "slots")


async def test_a_seat_that_the_build_before_took_over_has_no_feature(server_pools):
    """That build writes how large its engine is, and nothing of features."""
    pool = await server_pools()
    earlier = await Owner.take(pool, "earlier")
    await (await Owner.take(pool, "taken")).exchange(room=replace(LATER, requests=0))
    await pool._server.command("HSET", f"{pool._prefix}seat:taken", "slots", LONGEST)
    await pool.submit(salted("salted"))
    assert await earlier.claim(EARLIER) == []
    assert (await stored(pool, "salted/0")).end == UNSERVED
