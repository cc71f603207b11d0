"""How long requests waited and ran, and what each tenant got: counted once, by the scheduler that ends them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from services.loop.stats import IterationStats, RequestStats
from services.messages import Claim, Commit, End, Iteration, IterationResult, NewRequest, NewSequence, Submission
from services.metrics import Counters
from services.requests import FinishReason, SamplingParams
from tests.services.loop.world import WORD, World, stop, virtual

QUEUE = "vllm:request_queue_time_seconds_sum|default|0"
PHASES = ("prefill", "decode", "inference")
ENDED = End(FinishReason.LENGTH)


def counted(world: World) -> dict[str, float]:
    """The sums of all exchanges, each counted once."""
    sums: Counter[str] = Counter()
    for exchange in {(x.epoch, x.call): x for _, x in world.connection.sent}.values():
        sums.update(exchange.counters)
    return sums


def phases(sums: dict[str, float]) -> list[float]:
    return [sums[f"vllm:request_{name}_time_seconds_sum|0"] for name in PHASES]


@virtual
async def test_the_times_of_a_request_add_up_to_its_life() -> None:
    world = World(batch=1)
    first = await world.submit("a", new=3)
    waiting = await world.submit("b", new=5)
    loop = await world.run()
    await world.ended(first, waiting)
    await stop(world, loop)
    sums = counted(world)
    # an iteration takes 0.1 s: the second request waits for the three of the first
    assert sums[QUEUE] == pytest.approx(0.3, abs=0.02)
    prefill, decode, inference = phases(sums)
    assert prefill == pytest.approx(0.2, abs=0.02)
    assert decode == pytest.approx(0.6, abs=0.02)
    assert inference == pytest.approx(prefill + decode)


@virtual
async def test_tenants_and_classes_are_counted_apart() -> None:
    world = World()
    world.counters = Counters(["red"])
    for request, tenant, priority in (("a", "red", 0), ("b", "blue", 0), ("c", "red", 2), ("d", "green", 0)):
        sequence = NewSequence(f"{request}/0", [WORD] * 7, SamplingParams(4))
        await world.pool.submit(Submission(request, "g", [sequence], tenant=tenant, priority=priority))
    loop = await world.run()
    await world.ended("a/0", "b/0", "c/0", "d/0")
    await stop(world, loop)
    sums = counted(world)
    prompts = {k.partition("|")[2]: v for k, v in sums.items() if k.startswith("orca:tenant_prompt_tokens|")}
    outputs = {k.partition("|")[2]: v for k, v in sums.items() if k.startswith("orca:tenant_generation_tokens|")}
    assert prompts == {"red|0": 7, "red|2": 7, "other|0": 14}
    assert outputs == {"red|0": 4, "red|2": 4, "other|0": 8}
    assert sums["orca:tenant_requests|other|0|length"] == 2


@virtual
async def test_a_request_that_was_taken_over_is_counted_once_and_its_times_are_not() -> None:
    world = World()
    id = await world.submit("a", new=6)
    dead = await world.run()
    await asyncio.sleep(0.25)
    assert 0 < len((await world.read(id))[0]) < 6
    epoch = world.epoch
    dead.cancel()
    await asyncio.gather(dead, return_exceptions=True)
    loop = await world.run("another", dead_epoch=epoch)
    await world.ended(id)
    await stop(world, loop)
    sums = counted(world)
    assert sums["orca:tenant_generation_tokens|default|0"] == 6
    assert sums["orca:tenant_requests|default|0|length"] == 1
    assert QUEUE not in sums


def test_a_preemption_counts_as_part_of_the_phase_it_falls_into() -> None:
    counters = Counters()
    stats = RequestStats(counters, "0")
    new = NewRequest("a/0", [WORD], 1, SamplingParams(2))
    stats.claimed([Claim("a/0", 1.0, [WORD], [], SamplingParams(2), waited=0.5)], 10.0)
    stats.started(Iteration("e", 1, {"a/0": 1}, [new]), 11.0)
    stats.committed([Commit("a/0", 0, [WORD])], 12.0)
    stats.committed([Commit("a/0", 0, [WORD])], 13.0)  # the pool had lost it
    stats.started(Iteration("e", 2, {"a/0": 2}, [new]), 15.0)
    for at in (16.0, 17.0):
        stats.committed([Commit("a/0", 1, [WORD], end=ENDED)], at)
    sums = counters.take()
    assert sums[QUEUE] == 1.5
    assert phases(sums) == [1.0, 4.0, 5.0]
    assert sums["vllm:request_success|0|length"] == 1


def test_iterations_are_counted_by_what_they_computed() -> None:
    counters = Counters()
    stats = IterationStats(counters, "0")
    claims = [Claim(id, 1.0, [WORD], [], SamplingParams(9)) for id in ("a", "b")]
    stats.claimed(claims, [], 1.0)
    stats.claimed(claims[:1], ["a", "b"], 2.0)  # both belonged to another scheduler, which gave one back
    chunk = Iteration("e", 1, {"a": 1, "b": 1, "c": 5})
    short = Iteration("e", 2, {"a": 1, "b": 1}, [NewRequest("a", [WORD], 1, SamplingParams(9))])
    for iteration, tokens in ((chunk, "ab"), (short, "ab")):
        stats.started(iteration, 3.0)
        stats.finished(iteration, IterationResult("e", iteration.step, dict.fromkeys(tokens, WORD), elapsed=9.0), 0.25)
    stats.committed([Commit(id, 1, [WORD], end=ENDED) for id in ("a", "b")], 5.0)
    sums = stats.take_counters({})
    assert (sums["orca:iterations|0"], sums["orca:mixed_iterations|0"]) == (2, 2)
    assert (sums["vllm:prompt_tokens|0"], sums["vllm:generation_tokens|0"]) == (5 + 1, 4)
    assert (sums["orca:iteration_seconds_sum|0"], sums["orca:iteration_requests_sum|0"]) == (0.5, 5)
    assert sums["vllm:request_success|0|length"] == 1
    assert stats.gauges(True) == {"ready": 1, "batch_size": 2, "peak_batch_size": 3}


def test_drafts_are_counted_with_the_places_of_their_right_tokens() -> None:
    stats = IterationStats(Counters(), "0")
    drafts, more = {"a": [7, 7, 7], "b": [7, 8], "c": [8]}, {"a": [7, 7], "b": [7]}
    iteration = Iteration("e", 1, dict.fromkeys("abcd", 1), drafts=drafts)
    stats.finished(iteration, IterationResult("e", 1, dict.fromkeys("abcd", WORD), more=more), 0.25)
    sums, name = stats.take_counters({}), "vllm:spec_decode_num"
    assert (sums[f"{name}_drafts|0"], sums[f"{name}_draft_tokens|0"], sums[f"{name}_accepted_tokens|0"]) == (3, 6, 3)
    assert {series: n for series, n in sums.items() if "per_pos" in series} == {
        f"{name}_accepted_tokens_per_pos|0|0": 2,
        f"{name}_accepted_tokens_per_pos|0|1": 1,
    }
    assert sums["vllm:generation_tokens|0"] == 4 + 3


def test_a_request_without_a_token_has_no_times_and_one_of_another_scheduler_is_not_counted() -> None:
    counters = Counters()
    stats = RequestStats(counters, "0")
    stats.claimed([Claim(id, 1.0, [WORD], [], SamplingParams(2)) for id in ("a/0", "b/0")], 10.0)
    stats.dropped(["b/0"])
    stats.started(Iteration("e", 1, {"a/0": 1}, [NewRequest("a/0", [WORD], 1, SamplingParams(2))]), 11.0)
    stats.committed([Commit(id, 0, [], end=End(FinishReason.CANCELLED)) for id in ("a/0", "b/0")], 12.0)
    sums = counters.take()
    assert sums == {
        "vllm:request_success|0|cancelled": 1,
        "orca:tenant_requests|default|0|cancelled": 1,
        "orca:tenant_prompt_tokens|default|0": 1,
        "orca:tenant_generation_tokens|default|0": 0,
    }
