"""Submit: a group enters completely or not at all, once, and within the bounds."""

import asyncio
from dataclasses import replace

import pytest
from pool_helpers import NO_ROOM, ROOM, Owner, all_events, commit, counts, group, rung, size, stored

from services import wire
from services.messages import Group, Logprobs, PromptLogprobs, Room, SubmitReply
from services.pool.group_packing import prompt_logprobs_bytes, token_bytes
from services.requests import Refusal, SamplingParams


async def test_a_claim_equals_what_was_submitted(pool):
    submission = group("r", n=2, prompt=[5, 2**32 - 1, 0], new=7, seed=2**64 - 1, logit_bias={3: -1.5}, stop=("é", "b"))
    assert await pool.submit(submission) == SubmitReply("r")
    reply = await (await Owner.take(pool)).exchange(room=ROOM)
    assert [(c.id, c.prompt, c.output, c.sampling) for c in reply.claims] == [
        (s.id, s.prompt, [], s.sampling) for s in submission.sequences
    ]
    assert reply.claims[0].rank < reply.claims[1].rank


async def test_the_overview_has_the_prompt_tokens_that_wait(pool):
    await pool.submit(group("r", n=2, prompt=[5, 6, 7]))
    await pool.submit(group("s", prompt=[5]))
    owner = await Owner.take(pool)
    assert (await pool.overview()).waiting_tokens == 7
    await owner.claim()
    assert (await pool.overview()).waiting_tokens == 0


async def test_a_grammar_is_stored_once_per_group(pool):
    grammar = f'start: "{"x" * 10_000}"'
    await pool.submit(group("one", n=1, grammar=grammar))
    one = (await pool.overview()).bytes
    await pool.submit(group("four", n=4, grammar=grammar))
    assert (await pool.overview()).bytes - 2 * one < len(grammar) < one


async def test_a_repeat_by_request_id_changes_nothing(pool):
    assert await pool.submit(group("r", n=2)) == SubmitReply("r")
    before = await pool.overview()
    assert await pool.submit(group("r", n=2)) == SubmitReply("r", existed=True)
    assert await pool.overview() == before


async def test_a_known_idempotency_key_returns_the_earlier_request(pool):
    await pool.submit(group("first", key="k"))
    assert await pool.submit(group("second", key="k")) == SubmitReply("first", existed=True)
    assert await counts(pool) == (1, 0, 0)


async def test_idempotency_keys_of_different_tenants_are_separate(pool):
    await pool.submit(group("first", key="k", tenant="a"))
    assert await pool.submit(group("second", key="k", tenant="b")) == SubmitReply("second")


async def test_the_gateway_of_a_repeat_listens_too(pool):
    await pool.submit(group("r", key="k", gateway="one"))
    await pool.submit(group("other", key="k", gateway="two"))
    owner = await Owner.take(pool)
    await owner.claim()
    await owner.exchange(commit("r/0", 0, 9))
    assert await all_events(pool, "one") == await all_events(pool, "two") != []


async def test_a_group_over_the_waiting_bound_is_refused_completely(pools):
    pool = await pools(max_waiting=3)
    await pool.submit(group("a", n=2))
    before = await pool.overview()
    assert await pool.submit(group("b", n=2)) == SubmitReply("b", refused=Refusal("waiting", False, 2, 2, 3))
    assert await pool.overview() == before
    assert await pool.group("b") is None
    assert await pool.submit(group("c", n=1)) == SubmitReply("c")


async def test_running_sequences_leave_the_waiting_bound(pools):
    pool = await pools(max_waiting=1)
    await pool.submit(group("a"))
    await (await Owner.take(pool)).claim()
    assert (await pool.submit(group("b"))).refused is None


async def test_a_group_over_the_bound_of_bytes_is_refused_completely(pools):
    first, second = group("a", n=2), group("b")
    pool = await pools(max_bytes=size(first, second) - 1)
    await pool.submit(first)
    refused = Refusal("bytes", False, size(first), size(second), size(first, second) - 1)
    assert await pool.submit(second) == SubmitReply("b", refused=refused)
    assert (await pool.overview()).bytes == size(first)


async def test_bytes_include_output_that_is_not_generated_yet(pool):
    await pool.submit(group("a", new=1000))
    promised = (await pool.overview()).bytes
    assert promised >= 4 * 1000
    owner = await Owner.take(pool)
    await owner.claim(Room(1, 1000, 16))
    await owner.exchange(commit("a/0", 0, *range(1000)))
    assert (await pool.overview()).bytes == promised


async def test_log_probabilities_count_at_least_what_they_take():
    for count in (0, 1, 20):
        one = Logprobs(-1.5, [(200_000, -2.5)] * count)
        assert token_bytes(SamplingParams(1, logprobs=count)) - token_bytes(SamplingParams(1)) >= len(wire.pack(one))


async def test_log_probabilities_of_a_prompt_count_at_least_what_they_take():
    for count in (0, 1, 20):
        scores = PromptLogprobs([-1.5] * 499, [70_000] * 499, [200_000] * 499 * count, [-0.1] * 499 * count)
        sent = len(wire.pack(Logprobs(-1.0, [], scores))) - len(wire.pack(Logprobs(-1.0, [])))
        assert prompt_logprobs_bytes(SamplingParams(1, logprobs=0, prompt_logprobs=count), 500) >= sent


async def test_any_gateway_finds_a_group(pool):
    body = bytes(range(256))
    await pool.submit(replace(group("r", n=3, tenant="t", body=body), resumable=True))
    await pool.submit(replace(group("s"), background=True))
    assert await pool.group("r") == Group("r", "t", ["r/0", "r/1", "r/2"], body, False, True, False)
    assert await pool.group("s") == Group("s", "default", ["s/0"], b"", False, False, True)
    await pool.cancel("r")
    assert (await pool.group("r")).ended
    assert await pool.group("unknown") is None


async def test_bytes_include_the_body(pools):
    pool = await pools(max_bytes=size(group("a")) + 100)
    assert (await pool.submit(group("a", body=bytes(101)))).refused.bound == "bytes"
    assert (await pool.submit(group("a", body=bytes(100)))).refused is None
    assert (await pool.overview()).bytes == size(group("a")) + 100


async def test_a_pool_accepts_an_empty_and_a_long_prompt(pool):
    await pool.submit(group("empty", prompt=[]))
    await pool.submit(group("long", prompt=range(20_000)))
    reply = await (await Owner.take(pool)).exchange(room=Room(2, 10_000, 16))
    assert [len(claim.prompt) for claim in reply.claims] == [0, 20_000]
    assert (await stored(pool, "long/0")).num_prompt_tokens == 20_000


async def test_submit_rings_the_bell_of_an_idle_seat_only(pool):
    idle, busy = await Owner.take(pool, "idle"), await Owner.take(pool, "busy")
    await idle.exchange(room=ROOM, idle=True)
    await busy.exchange(room=NO_ROOM)
    await pool.submit(group("r"))
    assert await rung(pool, "idle")
    assert not await rung(pool, "busy")


async def test_a_ring_wakes_once(pool):
    owner = await Owner.take(pool, "seat")
    await owner.exchange(room=NO_ROOM, idle=True)
    await pool.submit(group("a"))
    await pool.submit(group("b"))
    assert await rung(pool, "seat")
    await asyncio.wait_for(pool.wait_bell("seat", 60), 30)
    assert not await rung(pool, "seat")


async def test_a_ring_ends_a_wait(pool):
    owner = await Owner.take(pool, "seat")
    await owner.exchange(room=ROOM, idle=True)
    waiting = asyncio.create_task(pool.wait_bell("seat", 60))
    await asyncio.sleep(0)
    await pool.submit(group("a"))
    await asyncio.wait_for(waiting, 30)


async def test_a_wait_without_a_ring_ends(pool):
    await asyncio.wait_for(pool.wait_bell("seat", 0.01), 30)


async def test_an_exchange_that_claims_does_not_wait_for_the_bell(pool):
    owner = await Owner.take(pool, "seat")
    await pool.submit(group("a"))
    await owner.exchange(room=ROOM, idle=True)
    await pool.submit(group("b"))
    assert not await rung(pool, "seat")


async def test_a_gateway_needs_a_name(server_pools):
    with pytest.raises(ValueError, match="gateway's name is empty"):
        await (await server_pools()).submit(group("r", gateway=""))
