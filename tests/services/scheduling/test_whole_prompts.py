"""Prompts of a model that needs all of a text at once: each is computed in one iteration, whatever the budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.knobs import knobs_of
from services.messages import EngineFigures
from services.requests import BATCH_CLASS
from services.scheduling import Knobs
from services.settings.settings import Settings
from tests.services.scheduling.scripted import claim, scripted

BUDGET = 16


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    budget=st.sampled_from([None, BUDGET]),
    target=st.sampled_from([None, 0.01]),
    lines=st.booleans(),
)
def test_each_text_has_one_iteration_and_none_starves(
    lengths: list[int], budget: int | None, target: float | None, lines: bool
) -> None:
    clock = count()

    def seconds() -> float:
        return float(next(clock))  # so that lines of batches do not wait

    s = scripted(knobs=Knobs(8, token_budget=budget, tbt_target=target, whole_prompts=True), now=seconds)
    claims = [claim(f"r{i}", i, length, 1, logprobs=0, vector=3) for i, length in enumerate(lengths)]
    s.scheduler.add([replace(one, priority=BATCH_CLASS if lines else 0) for one in claims])
    batches = []
    while s.scheduler.held() and s.select():
        batches.append(dict(s.batch))
        s.finish(elapsed=0.001 * sum(s.batch.values()))
        assert len(batches) <= len(lengths)
    computed = {id: tokens for batch in batches for id, tokens in batch.items()}
    assert computed == {f"r{i}": length for i, length in enumerate(lengths)}
    assert sum(map(len, batches)) == len(lengths)
    if budget:
        assert all(sum(batch.values()) <= BUDGET or len(batch) == 1 for batch in batches)


def test_a_prefix_is_not_cached_where_all_tokens_are_needed() -> None:
    figures = EngineFigures("m", 129, 100, 4, 100, "n", whole_prompts=True, vector=3)
    knobs = knobs_of(Settings(prefix_caching=True), figures)
    assert (knobs.whole_prompts, knobs.prefix_caching) == (True, False)
    with pytest.raises(AssertionError, match="cached prefix"):
        replace(knobs, prefix_caching=True)


def test_the_next_texts_are_sent_before_the_last_vectors_are_back() -> None:
    figures = EngineFigures("m", 129, 100, 4, 100, "n", whole_prompts=True, vector=3)
    knobs = knobs_of(Settings(max_batch_size=2), figures)
    assert (knobs.batches_in_flight, knobs.lookahead) == (2, 0)
    assert knobs_of(Settings(lookahead=0), figures).batches_in_flight == 1  # Algorithm 1 of the paper
    s = scripted(knobs=knobs)
    assert s.scheduler.room().requests == 4
    s.scheduler.add([claim(f"r{i}", i, 3, 1, logprobs=0, vector=3) for i in range(5)])
    sent = [one for one in (s.select(), s.select(), s.select()) if one]
    assert [set(one.scheduled) for one in sent] == [{"r0", "r1"}, {"r2", "r3"}]
    s.scheduler.update(s.result_of(sent[0]))
    assert s.select()
    assert set(s.batch) == {"r4"}
