"""Equal prefixes are computed once for all requests, choices and turns, but not across tenants unless it is allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.messages import Claim, Iteration
from services.scheduling import Knobs
from tests.services.scheduling.scripted import EOS, Script, claim, scripted


def caching(blocks: int = 100, **knobs: object) -> Script:
    return scripted(blocks=blocks, knobs=Knobs(8, prefix_caching=True, **knobs))  # type: ignore[arg-type]


def of(id: str, rank: float, prompt: list[int], new: int = 4, tenant: str = "t", **sampling: str) -> Claim:
    plain = claim(id, rank, 1, new)
    return replace(plain, prompt=prompt, tenant=tenant, sampling=replace(plain.sampling, **sampling))


def computed(iteration: Iteration | None) -> dict[str, int]:
    assert iteration is not None
    return {new.id: new.num_computed_tokens for new in iteration.new}


def test_a_later_request_finds_the_full_blocks_of_an_earlier_one() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [1, 2, 3, 4, 5, 6, 7, 8, 9])])
    first = s.select()
    assert computed(first) == {"a": 0}
    s.finish({"a": EOS})
    s.scheduler.add([of("b", 2, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11])])
    second = s.select()
    assert first is not None
    assert second is not None
    assert computed(second) == {"b": 8}
    assert second.scheduled == {"b": 2}
    assert second.new_blocks["b"][:2] == first.new_blocks["a"][:2]
    (commit,) = s.finish({"b": EOS})
    assert commit.end is not None
    assert commit.end.cached == 8
    assert s.scheduler.take_counters() == {"vllm:prefix_cache_queries": 19, "vllm:prefix_cache_hits": 8}


def test_choices_share_their_prompt_in_the_iteration_that_computes_it() -> None:
    s = caching()
    s.scheduler.add([of(f"r/{i}", i, [5] * 10) for i in range(3)])
    iteration = s.select()
    assert computed(iteration) == {"r/0": 0, "r/1": 8, "r/2": 8}
    assert iteration is not None
    assert iteration.scheduled == {"r/0": 10, "r/1": 2, "r/2": 2}
    s.finish()
    assert s.scheduler.blocks.held == 2 + 3 * 2  # 14 tokens each, of which 8 are shared


def test_one_token_is_always_left_to_compute() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [5] * 8), of("b", 2, [5] * 8)])
    assert computed(s.select()) == {"a": 0, "b": 4}


def test_a_chat_turn_finds_question_and_answer() -> None:
    s = caching()
    s.scheduler.add([of("turn", 1, [1, 2, 3], new=6)])
    answer = [11, 12, 13, 14, 15]
    for token in answer:
        s.step({"turn": token})
    s.step({"turn": EOS})
    s.scheduler.add([of("next", 2, [1, 2, 3, *answer, EOS, 20, 21])])
    assert computed(s.select()) == {"next": 8}


def test_other_tenants_share_only_if_it_is_allowed() -> None:
    for share, found in ((False, 0), (True, 8)):
        s = caching(share_prefixes=share)
        s.scheduler.add([of("a", 1, [5] * 9, tenant="one")])
        s.step()
        s.scheduler.add([of("b", 2, [5] * 9, tenant="two")])
        assert computed(s.select()) == {"b": found}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("tenant", "salt", "found"),
    [
        ("one", "salt", (8, 8)),
        ("one", "other", (0, 0)),
        ("one", "", (0, 0)),
        ("onesalt", "", (0, 0)),
        ("two", "salt", (0, 8)),
    ],
)
def test_prompts_with_different_salts_share_nothing(share: bool, tenant: str, salt: str, found: list[int]) -> None:
    s = caching(share_prefixes=share)
    s.scheduler.add([of("a", 1, [5] * 9, tenant="one", cache_salt="salt")])
    s.step()
    s.scheduler.add([of("b", 2, [5] * 9, tenant=tenant, cache_salt=salt)])
    assert computed(s.select()) == {"b": found[share]}


@pytest.mark.parametrize(
    ("sampling", "found"),
    [
        ({"adapter": "aa"}, 8),
        ({"adapter": "bb"}, 0),
        ({}, 0),
        ({"cache_salt": "aa"}, 0),
        ({"cache_salt": "aa\0"}, 0),
        ({"cache_salt": "\0aa\0"}, 0),
        ({"adapter": "aa", "cache_salt": "s"}, 0),
    ],
)
def test_prompts_with_different_adapters_share_nothing(sampling: dict[str, str], found: int) -> None:
    s = caching(share_prefixes=True)
    s.scheduler.add([of("a", 1, [5] * 9, adapter="aa")])
    s.step()
    s.scheduler.cancel(["a"])  # else b waits until its adapter is read
    s.scheduler.add([of("b", 2, [5] * 9, **sampling)])
    assert computed(s.select()) == {"b": found}


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [1, 1, 1, 1, 5, 5, 5, 5, 9])])
    s.step()
    s.scheduler.add([of("b", 2, [2, 2, 2, 2, 5, 5, 5, 5, 9])])
    assert computed(s.select()) == {"b": 0}


def test_the_block_that_was_idle_longest_is_evicted() -> None:
    s = caching(blocks=6)
    for name, word in (("a", 1), ("b", 2)):
        s.scheduler.add([of(name, word, [word] * 9, new=1)])
        s.step()
    s.scheduler.add([of("c", 3, [3] * 9, new=1)])  # 3 blocks: two empty ones and one of a
    s.step()
    s.scheduler.add([of("b2", 4, [2] * 9, new=1), of("a2", 5, [1] * 9, new=1)])
    assert computed(s.select()) == {"b2": 8, "a2": 4}


def test_a_preempted_request_finds_the_rest_of_its_blocks() -> None:
    s = caching(blocks=6, admission="on_demand")
    s.scheduler.add([of("a", 1, [1] * 4, new=16), of("b", 2, [2] * 4, new=16)])
    for _ in range(10):
        s.step()
    assert list(s.batch) == ["a"]
    iteration = s.select()
    assert iteration is not None
    s.finish({"a": EOS})
    assert computed(s.select()) == {"b": 8}  # 13 tokens; a took one block
    (commit,) = (c for c in s.finish({"b": EOS}) if c.id == "b")
    assert commit.end is not None
    assert commit.end.cached == 0  # its own blocks do not count


def test_blocks_of_a_failed_request_are_not_found() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [5] * 9)])
    s.step(failed={"a": "NaN"})
    s.scheduler.add([of("b", 2, [5] * 9)])
    assert computed(s.select()) == {"b": 0}


def test_a_chunk_is_shared_as_far_as_it_is_computed() -> None:
    s = caching(token_budget=8)
    s.scheduler.add([of("a", 1, [5] * 17), of("b", 2, [5] * 17)])
    batches = []
    for _ in range(3):
        s.step()
        batches.append(dict(s.batch))
    assert batches == [{"a": 8}, {"a": 8}, {"a": 1, "b": 1}]


def scored(id: str, rank: float, prompt: list[int], new: int = 4, output: tuple[int, ...] = ()) -> Claim:
    """A request that asks for log probabilities of its prompt."""
    one = of(id, rank, prompt, new)
    return replace(one, sampling=replace(one.sampling, logprobs=0, prompt_logprobs=0), output=list(output))


def test_a_prompt_that_is_scored_is_computed_whole_and_shared() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [5] * 9)])
    s.step()
    s.scheduler.add([scored("b", 2, [5] * 9), scored("c", 3, [6] * 9)])
    assert computed(s.select()) == {"b": 0, "c": 0}
    (end,) = (c.end for c in s.finish({"b": EOS}) if c.id == "b")
    assert end is not None
    assert end.cached == 0
    s.scheduler.add([of("d", 4, [6] * 9)])
    assert computed(s.select()) == {"d": 8}


def test_a_prompt_whose_scores_are_committed_is_found() -> None:
    s = caching()
    s.scheduler.add([of("a", 1, [5] * 8 + [9])])
    s.step()
    s.scheduler.add([scored("b", 2, [5] * 8 + [9], output=(11,))])
    assert computed(s.select()) == {"b": 8}


def test_a_scored_prompt_that_is_preempted_is_computed_from_its_beginning() -> None:
    """Its own published blocks are not used."""
    s = caching(blocks=21, admission="on_demand", token_budget=8)
    s.scheduler.add([of("a", 1, [1] * 4, new=30), of("c", 2, [3] * 4, new=30), scored("b", 3, [2] * 60, new=16)])
    begun: list[tuple[int, int]] = []  # of b: tokens at each start, and computed ones of these
    while iteration := s.select():
        begun += [(len(new.token_ids), new.num_computed_tokens) for new in iteration.new if new.id == "b"]
        s.finish()
    assert begun[:2] == [(60, 0), (60, 0)]
    assert sum(len(c.tokens) for c in s.commits if c.id == "b") == 16


def test_blocks_shared_by_a_preempted_request_and_its_successor_count_once() -> None:
    """Preempting `late` frees four blocks, of which `head` takes three: with them it lacks one of its five."""
    s = caching(blocks=5, admission="on_demand")
    s.scheduler.add([of("early", 20, [5], new=12), of("late", 30, [*range(10, 22)], new=3)])
    s.step()
    s.step()
    s.scheduler.add([of("head", 10, [*range(10, 22), *range(30, 35)], new=1)])
    while s.select():
        s.finish()
    assert {commit.id for commit in s.commits if commit.end} == {"early", "late", "head"}
