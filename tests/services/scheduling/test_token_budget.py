"""The token budget: decodes go first, and the rest goes to chunks of prompts of any size."""

from dataclasses import replace
from math import inf

import pytest

from services.messages import Claim
from services.requests import BATCH_CLASS
from services.scheduling import Knobs, WarmUpTime
from services.scheduling.budget import FIRST_GUESS, LEAST_ALONE, LEAST_CHUNK, LEAST_STRETCH, Budget
from services.scheduling.cost_model import CostModel
from tests.services.scheduling.scripted import Script, claim, scripted


def batches(s: Script, count: int) -> list[dict[str, int]]:
    made = []
    for _ in range(count):
        s.step()
        made.append(dict(s.batch))
    return made


def test_decodes_go_first_and_prompts_get_the_rest_in_order() -> None:
    s = scripted(knobs=Knobs(8, token_budget=8))
    s.scheduler.add([claim("a", 1, 3, 9)])
    s.step()
    s.scheduler.add([claim("b", 2, 12, 2), claim("c", 3, 4, 2)])
    assert batches(s, 4) == [
        {"a": 1, "b": 7},
        {"a": 1, "b": 5, "c": 2},  # the next prompt starts with what b leaves of the budget
        {"a": 1, "b": 1, "c": 2},
        {"a": 1, "c": 1},
    ]
    assert [(c.id, c.index) for c in s.commits if c.id != "a"] == [("b", 0), ("b", 1), ("c", 0), ("c", 1)]


def test_a_full_batch_of_decodes_leaves_nothing_for_prompts() -> None:
    s = scripted(knobs=Knobs(3, token_budget=3))
    s.scheduler.add([claim("a", 1, 1, 9), claim("b", 2, 1, 9), claim("c", 3, 5, 2)])
    assert batches(s, 6) == [{"a": 1, "b": 1, "c": 1}] * 5 + [{"a": 1, "b": 1, "c": 1}]
    assert [commit.index for commit in s.commits if commit.id == "c"] == [0, 1]


def test_a_budget_below_the_batch_size_is_an_error() -> None:
    with pytest.raises(AssertionError, match="token_budget = 7"):
        Knobs(8, token_budget=7)


def test_a_request_of_another_owner_is_recomputed_in_chunks() -> None:
    s = scripted(knobs=Knobs(4, token_budget=4))
    s.scheduler.add([claim("a", 1, 5, 9, output=(7, 7, 7))])
    assert batches(s, 3) == [{"a": 4}, {"a": 4}, {"a": 1}]
    assert [commit.index for commit in s.commits] == [3, 4]


def known(fixed: float, per_token: float, per_pair: float) -> CostModel:
    """A model that has seen an engine of exactly this cost."""
    cost = CostModel()
    for tokens, context in [(1, 50), (4, 400), (16, 100), (64, 2000), (300, 100), (1000, 10)] * 20:
        pairs = tokens * context
        cost.finished(tokens, pairs, fixed + per_token * tokens + per_pair * pairs)
    return cost


@pytest.mark.parametrize(
    ("fixed", "per_token", "per_pair"), [(0.01, 1e-4, 1e-8), (0.02, 2e-3, 0.0), (0.005, 0.0, 1e-7)]
)
def test_the_cost_model_learns_the_coefficients(fixed: float, per_token: float, per_pair: float) -> None:
    cost = known(fixed, per_token, per_pair)
    for tokens, pairs in [(1, 10), (100, 50_000), (500, 100_000)]:
        assert cost.seconds(tokens, pairs) == pytest.approx(fixed + per_token * tokens + per_pair * pairs, rel=0.05)


def test_coefficients_are_never_negative_and_follow_a_machine_that_slows_down() -> None:
    cost = CostModel()
    for tokens, seconds in [(100, 0.5), (1, 1.0), (50, 0.1), (7, 0.9)]:
        cost.finished(tokens, tokens, seconds)
        assert min(cost.coefficients) >= 0
    cost = known(0.01, 1e-4, 0.0)
    for tokens in [1, 16, 300] * 60:
        cost.finished(tokens, 0, 2 * (0.01 + 1e-4 * tokens))
    assert cost.seconds(64, 0) == pytest.approx(2 * (0.01 + 1e-4 * 64), rel=0.15)


def test_a_chunk_gets_the_time_that_decodes_leave_of_the_target() -> None:
    budget = Budget(Knobs(8, tbt_target=0.05), known(0.01, 1e-4, 1e-6))
    budget.add_decodes(4, 4_000)  # 0.01 + 0.0004 + 0.004
    count = budget.take_chunk(100, 10_000)
    assert 0.01 + 1e-4 * (4 + count) + 1e-6 * (4_004 + 100 * count + count**2 / 2) == pytest.approx(0.05, rel=0.05)
    assert budget.take_chunk(100, 10_000) < 15  # no time is left


def test_prompts_end_even_if_the_target_cannot_be_met() -> None:
    budget = Budget(Knobs(8, tbt_target=0.001), known(0.01, 1e-4, 0.0))
    assert [budget.take_chunk(0, 100), budget.take_chunk(0, 100)] == [LEAST_CHUNK, 0]


@pytest.mark.parametrize("per_token", [0.007, 0.02, 0.05])  # models of 1B, 3B and 8B on two cores
def test_a_lone_prompt_of_a_large_model_is_computed_in_chunks_that_cost_little_more_than_the_whole(
    per_token: float,
) -> None:
    """Fewer rows take longer each: an iteration of few tokens costs what the weights cost, and half a token for each.
    Beside streams, a chunk is small."""
    budget = Budget(Knobs(32, tbt_target=0.18, stretch_target=True), known(8 * per_token, per_token, 0.0))
    assert budget.take_chunk(0, 500) == LEAST_ALONE
    assert budget.max_tokens == LEAST_ALONE
    seconds = budget.prompt_seconds(500, 0)
    assert seconds < 1.2 * (8 + 500) * per_token
    budget.begin()
    budget.begin_running(newcomers=True)
    assert budget.take_chunk(0, 500) == LEAST_ALONE // 2
    budget.end_running()
    assert budget.take_chunk(0, 500) == LEAST_ALONE // 2
    budget.begin()
    budget.add_decodes(1, 100)
    assert budget.take_chunk(0, 500) < LEAST_ALONE // 2


def test_an_automatic_target_is_raised_on_a_slow_engine() -> None:
    """One decode takes 1 s, which leaves nothing of a target of 0.25 s to prompts."""
    budget = Budget(Knobs(8, tbt_target=0.25, stretch_target=True), known(1.0, 0.01, 0.0))
    budget.add_decodes(1, 10)
    assert budget.take_chunk(0, 10_000) == pytest.approx((LEAST_STRETCH - 1) * 1.01 / 0.01, rel=0.05)


def test_an_automatic_target_is_raised_beside_decodes_that_take_long() -> None:
    budget = Budget(Knobs(8, tbt_target=0.05, stretch_target=True), known(0.01, 1e-4, 1e-6))
    budget.add_decodes(8, 80_000)  # 0.09 s
    chunk = budget.take_chunk(0, 10_000)
    assert 1e-4 * chunk + 1e-6 * chunk * chunk / 2 == pytest.approx((LEAST_STRETCH - 1) * 0.09, rel=0.05)
    budget.begin()
    budget.add_decodes(1, 10)
    chunk = budget.take_chunk(0, 10_000)
    assert 0.01 + 1e-4 * chunk + 1e-6 * chunk * chunk / 2 == pytest.approx(0.05, rel=0.05)


def test_a_short_request_starts_beside_long_prompts_that_came_before_it() -> None:
    first = []
    for stretched in (False, True):
        s = scripted(blocks=9000, length=9000, knobs=Knobs(8, tbt_target=0.25, stretch_target=stretched))
        s.scheduler.add([claim("a", 1, 6000, 2), claim("b", 2, 6000, 2)])
        number = 0
        while not any(commit.id == "short" for commit in s.commits):
            number += 1
            if number == 4:
                s.scheduler.add([claim("short", 3, 20, 1)])
            s.select()
            s.finish(elapsed=0.02 + 0.001 * sum(s.batch.values()))
        first.append(number)
    assert first[0] > 40  # both prompts are computed first
    assert first[1] == 4


@pytest.mark.parametrize(
    ("token_budget", "fixed", "per_token"),
    [
        (None, 0.02, 0.02),  # half of the target is less than the least chunk
        (64, 0.02, 0.001),  # the token budget allows less than the target
        (8, 0.02, 0.001),
    ],
)
def test_the_running_prompt_leaves_a_share_of_any_budget(
    token_budget: int | None, fixed: float, per_token: float
) -> None:
    knobs = Knobs(8, token_budget=token_budget, tbt_target=0.25, stretch_target=True)
    s = scripted(blocks=9000, length=9000, knobs=knobs, warm_up=WarmUpTime(16, fixed + 16 * per_token))
    s.scheduler.add([claim("long", 1, 6000, 2)])
    for number in range(40):
        if number == 20:
            s.scheduler.add([claim("short", 2, 4, 1)])
        s.select()
        s.finish(elapsed=fixed + per_token * sum(s.batch.values()))
    assert [commit.id for commit in s.commits] == ["short"]


def test_a_token_budget_above_the_target_changes_no_share() -> None:
    chunks = []
    for token_budget in (None, 5000):
        knobs = Knobs(8, token_budget=token_budget, tbt_target=0.25, stretch_target=True)
        budget = Budget(knobs, known(0.05, 0.001, 0.0))
        budget.add_decodes(4, 0)
        budget.begin_running(newcomers=True)
        chunks.append(budget.take_chunk(0, 1000))
        budget.end_running()
        chunks.append(budget.take_chunk(0, 1000))
    assert chunks == [98, 98, 98, 98]


def test_a_request_that_lacks_blocks_takes_no_time_from_running_prompts() -> None:
    """The second prompt needs more blocks than the first one leaves. Neither does a line of a batch, which waits."""
    chunks = []
    first, line = claim("a", 1, 500, 2), replace(claim("line", 2, 4, 2), priority=BATCH_CLASS)
    for claims in ([first], [first, claim("b", 2, 400, 2)], [first, line]):
        knobs = Knobs(8, tbt_target=0.25, stretch_target=True, admission="on_demand")
        s = scripted(blocks=150, length=600, knobs=knobs, warm_up=WarmUpTime(16, 0.02))
        s.scheduler.add(claims)
        made = []
        while not s.commits:
            s.select()
            made.append(s.batch["a"])
            s.finish(elapsed=0.02 + 0.001 * sum(s.batch.values()))
        chunks.append(made)
    assert chunks[0] == chunks[1] == chunks[2]


def test_the_first_chunk_is_sized_by_the_warm_up() -> None:
    """An engine that needs 2 s for 16 tokens gets the least, not `FIRST_GUESS` tokens; a fast one gets a long chunk."""
    chunks = []
    for seconds in (2.0, 0.002):
        knobs = Knobs(8, tbt_target=0.25, stretch_target=True)
        s = scripted(blocks=1000, length=4000, knobs=knobs, warm_up=WarmUpTime(16, seconds))
        s.scheduler.add([claim("a", 1, 3000, 2)])
        s.select()
        chunks.append(s.batch["a"])
    assert chunks[0] == LEAST_ALONE
    assert chunks[1] > FIRST_GUESS


def test_the_next_scheduler_of_a_process_knows_the_speed_of_its_engines() -> None:
    knobs, cost = Knobs(8, tbt_target=0.25, stretch_target=True), CostModel()
    chunks = []
    for _ in range(2):
        s = scripted(blocks=6000, length=20000, knobs=knobs, warm_up=WarmUpTime(16, 0.25), cost=cost)
        s.scheduler.add([claim("a", 1, 15000, 2)])
        for _ in range(3):
            s.select()
            chunks.append(s.batch["a"])
            s.finish(elapsed=0.01 + 0.0005 * s.batch["a"])
    assert chunks[3] > 5 * chunks[0]


def test_both_bounds_hold() -> None:
    budget = Budget(Knobs(8, token_budget=10, tbt_target=1.0), known(0.01, 1e-4, 0.0))
    budget.add_decodes(4, 0)
    assert budget.take_chunk(0, 100) == 6


@pytest.mark.parametrize(
    ("knobs", "most"),
    [
        (Knobs(8), inf),
        (Knobs(8, token_budget=300), 300),
        (Knobs(8, tbt_target=0.05), 400),  # 0.01 + 400 * 1e-4
        (Knobs(8, token_budget=300, tbt_target=0.05), 300),
        (Knobs(8, tbt_target=0.001), LEAST_CHUNK),
    ],
)
def test_max_tokens_does_not_depend_on_the_last_iteration(knobs: Knobs, most: float) -> None:
    budget = Budget(knobs, known(0.01, 1e-4, 0.0))
    assert budget.max_tokens == pytest.approx(most, rel=0.02)
    budget.add_decodes(8, 800)
    budget.take_chunk(100, 250)
    assert budget.max_tokens == pytest.approx(most, rel=0.02)


def test_the_gauge_is_the_same_before_and_after_an_iteration_that_uses_it_up() -> None:
    s = scripted(blocks=1000, length=1000, knobs=Knobs(8, tbt_target=0.05))
    assert s.scheduler.gauges()["token_budget"] == FIRST_GUESS
    assert "token_budget" not in scripted().scheduler.gauges()
    s.scheduler.add([claim("a", 1, 900, 40)])
    s.step(elapsed=0.03)
    before = s.scheduler.gauges()["token_budget"]
    s.select()
    assert s.scheduler.gauges()["token_budget"] == before
    assert before >= s.batch["a"] > before / 2


def test_a_target_is_met_by_the_whole_scheduler() -> None:
    """On an engine with 10 ms and 1 ms per token, no iteration takes longer than the target after the first few."""
    s = scripted(blocks=1000, length=400, knobs=Knobs(8, tbt_target=0.05))
    s.scheduler.add([claim("a", 1, 3, 100)])
    seconds = []
    for number in range(60):
        if number % 10 == 5:
            prompt = [7 + number] * 70
            s.scheduler.add([Claim(f"p{number}", 2.0 + number, prompt, [], claim("x", 1, 1, 5).sampling)])
        s.select()
        seconds.append(0.01 + 0.001 * sum(s.batch.values()))
        s.finish(elapsed=seconds[-1])
    assert max(seconds[30:]) <= 0.055
    assert max(seconds[30:]) > 0.04  # and most of the time is used
