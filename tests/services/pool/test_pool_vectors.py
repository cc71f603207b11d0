"""A vector in the pool: committed once with its token, kept and counted like it, for engines that make vectors."""

from array import array
from dataclasses import replace

from pool_helpers import ROOM, STOP, Owner, all_events, commit, group, size, stored

from services.messages import Logprobs
from services.requests import FEATURES


def carrying(*numbers):
    return Logprobs(0.0, [], vector=array("f", numbers).tobytes())


def texts(name="v", n=2, vector=3):
    return group(name, n, new=1, logprobs=0, vector=vector)


async def test_it_is_committed_once_and_never_changes(pool):
    owner = await Owner.take(pool)
    await pool.submit(texts())
    assert await owner.claim(replace(ROOM, features=FEATURES)) == ["v/0", "v/1"]
    first, other = carrying(0.5, -1.25, 1e-20), carrying(9.0, 9.0, 9.0)
    await owner.exchange(commit("v/0", 0, 0, logprobs=[first], end=STOP))
    await owner.exchange(commit("v/0", 0, 0, logprobs=[other], end=STOP))
    snapshot = await stored(pool, "v/0")
    assert (snapshot.tokens, snapshot.logprobs, snapshot.end) == ([0], [first], STOP)
    events = [event for event in await all_events(pool) if event.id == "v/0"]
    assert [event.logprobs for event in events if event.token is not None] == [first]


async def test_its_bytes_count_from_the_submission_on(pool):
    assert size(texts(vector=1000)) - size(texts(vector=0)) in range(8000, 8100)
