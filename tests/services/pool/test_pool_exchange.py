"""Exchange: commits by index, one end, claims in order of arrival; repeat-safe and fenced by the epoch."""

import math

import pytest
from pool_helpers import (
    CANCELLED,
    FIGURES,
    NO_ROOM,
    ROOM,
    STOP,
    Owner,
    all_events,
    commit,
    counts,
    group,
    rung,
    stored,
    timeless,
)

from services.messages import Commit, ExchangeReply, Logprobs, PromptLogprobs, Room, TokenEvent


@pytest.fixture
async def owner(pool):
    """An owner that runs `r/0` and `r/1`."""
    await pool.submit(group("r", n=2))
    owner = await Owner.take(pool)
    assert await owner.claim() == ["r/0", "r/1"]
    return owner


async def test_tokens_are_stored_and_published_in_order(pool, owner):
    await owner.exchange(commit("r/0", 0, 7), commit("r/1", 0, 8, 9))
    await owner.exchange(commit("r/0", 1, 2**32 - 1), commit("r/1", 2, end=STOP))
    assert (await stored(pool, "r/0")).tokens == [7, 2**32 - 1]
    assert await all_events(pool) == [
        TokenEvent("r/0", 0, 7),
        TokenEvent("r/1", 0, 8),
        TokenEvent("r/1", 1, 9),
        TokenEvent("r/0", 1, 2**32 - 1),
        TokenEvent("r/1", 2, None, end=STOP),
    ]


async def test_an_exchange_writes_one_stream_entry_for_a_gateway(server_pools):
    pool = await server_pools()
    await pool.submit(group("r", n=50))
    owner = await Owner.take(pool)
    await owner.claim(Room(50, 500, 16))
    await owner.exchange(*(commit(f"r/{i}", 0, i) for i in range(50)))
    assert await pool._server.command("XLEN", f"{pool._prefix}events:gateway") == 1
    assert len(await all_events(pool)) == 50


async def test_a_batch_larger_than_the_limit_of_luas_unpack(pools):
    pool = await pools(max_waiting=8100)
    await pool.submit(group("r", n=8100))
    owner = await Owner.take(pool)
    ids = await owner.claim(Room(8100, 8100, 16))
    assert ids == [f"r/{i}" for i in range(8100)]
    await owner.exchange(*(commit(id, 0, i) for i, id in enumerate(ids)))
    assert [event.token for event in await all_events(pool)] == list(range(8100))


async def test_committed_tokens_never_change(pool, owner):
    await owner.exchange(commit("r/0", 0, 1, 2))
    await owner.exchange(commit("r/0", 0, 5, 6, 7))
    await owner.exchange(commit("r/0", 1, 8))
    assert (await stored(pool, "r/0")).tokens == [1, 2, 7]
    assert [(e.index, e.token) for e in await all_events(pool)] == [(0, 1), (1, 2), (2, 7)]


async def test_a_commit_after_a_gap_is_refused_with_the_number_of_tokens(pool, owner):
    await owner.exchange(commit("r/1", 0, 1))
    gap = (commit("r/0", 0, 5), commit("r/1", 3, 4, end=STOP), commit("r/1", 1, 2))
    reply = await owner.exchange(*gap)
    assert (reply.have, reply.foreign, reply.cancelled) == ({"r/1": 1}, [], [])
    assert await owner.repeat(*gap) == reply
    assert (await stored(pool, "r/1")).tokens == [1]
    assert await counts(pool) == (0, 2, 0)
    assert (await owner.exchange(commit("r/1", 1, 2, 3, 4, end=STOP))).have == {}
    assert [e.token for e in await all_events(pool) if e.id == "r/1"] == [1, 2, 3, 4, None]


async def test_a_sequence_ends_once(pool, owner):
    await owner.exchange(commit("r/0", 0, 1, end=STOP))
    assert await counts(pool) == (0, 1, 1)
    await owner.exchange(commit("r/0", 1, 2, end=CANCELLED), commit("r/0", 1, 3))
    assert (await stored(pool, "r/0")).end == STOP
    assert (await stored(pool, "r/0")).tokens == [1]
    assert [e.end for e in await all_events(pool) if e.end] == [STOP]
    assert await counts(pool) == (0, 1, 1)


async def test_two_commits_of_a_sequence_in_one_exchange(pool, owner):
    await owner.exchange(commit("r/0", 0, 1), commit("r/0", 1, 2, end=STOP), commit("r/0", 2, 3))
    assert [(e.index, e.token, e.end) for e in await all_events(pool)] == [(0, 1, None), (1, 2, None), (2, None, STOP)]


async def test_log_probabilities_arrive_with_their_tokens(pool):
    await pool.submit(group("r", logprobs=2))
    owner = await Owner.take(pool)
    await owner.claim()
    logprobs = [Logprobs(-0.5, [(3, -0.25), (4, -1.5)]), Logprobs(-2.0, [])]
    await owner.exchange(commit("r/0", 0, 1, 2, logprobs=logprobs))
    await owner.exchange(commit("r/0", 1, 9, 3, logprobs=[Logprobs(-9.0, []), Logprobs(-3.0, [])], end=STOP))
    every = [*logprobs, Logprobs(-3.0, [])]
    assert [e.logprobs for e in await all_events(pool)] == [*every, None]
    assert (await stored(pool, "r/0")).logprobs == every
    [rest] = await pool.listen("reader", {"r/0": 2})
    assert (rest.tokens, rest.logprobs) == ([3], every[2:])


async def test_log_probabilities_of_a_prompt_arrive_with_the_first_token(pool):
    """A later follower gets them too, and a repeated commit does not change them."""
    await pool.submit(group("r", logprobs=0, prompt_logprobs=1))
    owner = await Owner.take(pool)
    await owner.claim()
    first = Logprobs(-0.5, [], PromptLogprobs([-1.0, -math.inf], [1, 70_000], [3, 200_000], [-1.0, -0.25]))
    await owner.exchange(commit("r/0", 0, 1, logprobs=[first]))
    other = Logprobs(-0.5, [], PromptLogprobs([-9.0, -9.0], [9, 9], [9, 9], [-9.0, -9.0]))
    await owner.exchange(commit("r/0", 0, 1, 2, logprobs=[other, Logprobs(-2.0, [])], end=STOP))
    assert [e.logprobs for e in await all_events(pool)] == [first, Logprobs(-2.0, []), None]
    assert (await stored(pool, "r/0")).logprobs == [first, Logprobs(-2.0, [])]


async def test_log_probabilities_without_their_tokens_are_refused(server_pools):
    owner = await Owner.take(await server_pools())
    with pytest.raises(ValueError, match="2 tokens, log probabilities of 1"):
        await owner.exchange(commit("r/0", 0, 1, 2, logprobs=[Logprobs(0.0, [])]))


async def test_a_repeat_gives_the_same_reply_and_writes_nothing(pool):
    await pool.submit(group("r", n=3))
    owner = await Owner.take(pool)
    await owner.exchange(room=Room(1, 64, 16))
    what = (commit("r/0", 0, 5, 6),)
    more = {"room": Room(1, 64, 16), "counters": {"iterations": 1.0}, "gauges": {"x": 1.0}}
    reply = await owner.exchange(*what, **more)
    assert [claim.id for claim in reply.claims] == ["r/1"]
    before = await pool.overview()
    assert timeless(await owner.repeat(*what, **more)) == timeless(reply)
    assert await pool.overview() == before
    assert len(await all_events(pool)) == 2


async def test_a_call_before_the_last_one_writes_nothing(pool, owner):
    await owner.exchange(commit("r/0", 0, 1))
    owner.call -= 1
    assert await owner.repeat(commit("r/0", 1, 2), room=ROOM) == ExchangeReply(True)
    assert (await stored(pool, "r/0")).tokens == [1]


async def test_another_epoch_changes_nothing(pool, owner):
    await pool.submit(group("s"))
    before = await pool.overview()
    owner.epoch = owner.epoch + "0"
    reply = await owner.exchange(commit("r/0", 0, 1, end=STOP), room=ROOM, counters={"n": 1.0}, summary="late")
    assert reply == ExchangeReply(owned=False)
    assert await pool.overview() == before
    assert await all_events(pool) == []


async def test_commits_to_sequences_of_other_seats_change_nothing_and_are_reported(pool, owner):
    await pool.submit(group("s"))
    reply = await owner.exchange(commit("s/0", 0, 1), commit("never/0", 0, 1), commit("s/0", 0, 1, end=STOP))
    assert (reply.cancelled, reply.foreign) == ([], ["never/0", "s/0"])
    assert (await owner.repeat()).foreign == ["never/0", "s/0"]
    assert await counts(pool) == (1, 2, 0)


@pytest.mark.parametrize(
    ("room", "claimed"),
    [
        (Room(0, 100, 16), []),
        (Room(2, 100, 16), ["a/0", "b/0"]),
        (Room(8, 100, 16), ["a/0", "b/0", "c/0"]),
        (Room(8, 1, 16), ["a/0"]),  # 16 tokens take one block
        (Room(8, 3, 16), ["a/0"]),  # b needs 3 more; c would fit, but comes later
        (Room(8, 4, 16), ["a/0", "b/0"]),
        (Room(8, 5, 16), ["a/0", "b/0", "c/0"]),
        (Room(8, 0, 16), []),
        (Room(8, 33, 1), ["a/0"]),
        (Room(8, -1, 16), []),
        (Room(-1, 100, 16), []),
    ],
)
async def test_claims_stop_at_the_first_that_does_not_fit(pool, room, claimed):
    for name, new in (("a", 13), ("b", 30), ("c", 1)):
        await pool.submit(group(name, new=new))
    assert await (await Owner.take(pool)).claim(room) == claimed
    assert await counts(pool) == (3 - len(claimed), len(claimed), 0)


async def test_two_seats_share_the_queue(pool):
    await pool.submit(group("r", n=4))
    one, two = await Owner.take(pool, "one"), await Owner.take(pool, "two")
    assert await one.claim(Room(1, 64, 16)) == ["r/0"]
    assert await two.claim(Room(2, 64, 16)) == ["r/1", "r/2"]
    await two.exchange(commit("r/0", 0, 1), commit("r/1", 0, 2))
    assert [(await stored(pool, f"r/{i}")).tokens for i in range(2)] == [[], [2]]


async def test_counters_gauges_and_summary_appear_in_the_overview(pool, owner):
    await owner.exchange(figures=FIGURES, counters={"n": 0.1}, gauges={"kv_usage": 0.3, "batch_size": 2.0})
    await owner.exchange(counters={"n": 0.2, "m": 1e-9}, gauges={"kv_usage": 0.5}, summary="step 2: é")
    overview = await pool.overview()
    assert overview.counters == pytest.approx({"n": 0.3, "m": 1e-9})
    assert overview.figures == FIGURES
    [seat] = overview.seats
    assert (seat.name, seat.alive, seat.figures, seat.running) == (owner.seat, True, FIGURES, 2)
    assert (seat.gauges, seat.summary) == ({"kv_usage": 0.5}, "step 2: é")


async def test_a_counter_grows_by_finite_numbers_only(server_pools):
    owner = await Owner.take(await server_pools())
    with pytest.raises(ValueError, match="cannot grow by nan"):
        await owner.exchange(counters={"n": float("nan")})


async def test_the_figures_are_those_of_the_largest_living_engine(pool):
    small, large = await Owner.take(pool, "small"), await Owner.take(pool, "large")
    bigger = FIGURES.__class__("tiny", 1000, 65, 16, 1000, "float32/cpu")
    await large.exchange(figures=bigger)
    await small.exchange(figures=FIGURES)
    assert (await pool.overview()).figures == bigger
    await pool.release("large", large.epoch)
    assert (await pool.overview()).figures == FIGURES
    await pool.release("small", small.epoch)
    assert (await pool.overview()).figures == FIGURES


async def test_a_late_ring_does_not_outlive_the_next_exchange(pool, owner):
    await owner.exchange(idle=True)
    await pool.submit(group("s"))
    assert await rung(pool, owner.seat)
    await owner.exchange(room=NO_ROOM)
    assert not await rung(pool, owner.seat)


async def test_an_empty_commit_is_no_event(pool, owner):
    await owner.exchange(Commit("r/0", 0, []))
    assert await all_events(pool) == []
