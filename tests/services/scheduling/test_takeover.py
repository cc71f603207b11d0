"""The names of full blocks reach the engine once each, and the next owner finds these blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.messages import Claim, Iteration
from services.scheduling import Knobs
from services.scheduling.block_pool import BlockHashes
from services.scheduling.cost_model import WarmUpTime
from tests.services.scheduling.scripted import EOS, Script, claim, scripted

TENANT = "t"


def owner(
    cached: dict[int, bytes] | None = None, blocks: int = 100, caching: bool = True, lookahead: int = 0
) -> Script:
    return scripted(blocks=blocks, knobs=Knobs(8, prefix_caching=caching, lookahead=lookahead), cached_blocks=cached)


def of(id: str, rank: float, prompt: list[int], new: int = 40, output: tuple[int, ...] = (), **fields: int) -> Claim:
    return replace(claim(id, rank, 1, new, output, **fields), prompt=prompt, tenant=TENANT)


def names_of(tokens: list[int], salt: str = TENANT) -> list[bytes]:
    return BlockHashes(salt, 4).first(len(tokens) // 4, tokens, [])


def selected(s: Script) -> Iteration:
    iteration = s.select()
    assert iteration is not None
    return iteration


def named(prompt: list[int], blocks: list[int]) -> dict[int, bytes]:
    return dict(zip(blocks, names_of(prompt), strict=True))


def test_a_block_is_named_after_the_iteration_that_fills_it() -> None:
    s, tokens = owner(), [*range(10, 19)]
    s.scheduler.add([of("a", 1, tokens)])
    first = selected(s)
    table = first.new_blocks["a"]
    assert first.full_blocks == {}
    s.finish({"a": 19})
    sent = []
    for token in range(20, 25):
        sent.append(selected(s).full_blocks)
        s.finish({"a": token})
    names = names_of([*range(10, 25)])
    assert sent == [{table[0]: names[0], table[1]: names[1]}, {}, {}, {table[2]: names[2]}, {}]


def test_an_iteration_in_flight_has_filled_nothing() -> None:
    s = owner(lookahead=1)
    s.scheduler.add([of("a", 1, [*range(10, 19)])])
    first = selected(s)
    assert selected(s).full_blocks == {}
    s.scheduler.update(s.result_of(first))
    assert list(selected(s).full_blocks) == first.new_blocks["a"][:2]


@pytest.mark.parametrize("seconds", [0.03, 3.0])
def test_the_first_iteration_after_a_takeover_continues_all_requests(seconds: float) -> None:
    """Of each only the last block is computed again, which costs little beside a long context, and no stream goes on
    sooner in a later iteration. Of the engine's speed no more is known than its warm-up."""
    prompts = [[10 + number, *range(20, 80)] * 5 for number in range(8)]
    cached = dict(enumerate(name for prompt in prompts for name in names_of(prompt)))
    knobs = Knobs(8, prefix_caching=True, tbt_target=0.25, stretch_target=True)
    s = scripted(blocks=2 * len(cached), length=400, knobs=knobs, cached_blocks=cached, warm_up=WarmUpTime(16, seconds))
    s.scheduler.add([of(f"{number}/0", number, prompt, output=(7, 8)) for number, prompt in enumerate(prompts)])
    assert selected(s).scheduled == {f"{number}/0": 3 for number in range(8)}


def test_blocks_of_a_request_that_ended_are_named() -> None:
    s = owner()
    s.scheduler.add([of("a", 1, [*range(10, 19)])])
    table = selected(s).new_blocks["a"]
    s.finish({"a": EOS})
    s.scheduler.add([of("b", 2, [7])])
    assert selected(s).full_blocks == named([*range(10, 18)], table[:2])


def test_blocks_of_a_failed_request_are_not_named() -> None:
    s = owner()
    s.scheduler.add([of("a", 1, [*range(10, 19)]), of("b", 2, [7])])
    s.step(failed={"a": "NaN"})
    assert selected(s).full_blocks == {}


def test_a_block_that_was_reused_is_not_named() -> None:
    s = owner(blocks=3, lookahead=1)
    s.scheduler.add([of("a", 1, [*range(10, 19)], new=1)])
    first = selected(s)
    s.scheduler.cancel(["a"])  # its names wait for the iteration
    s.scheduler.add([of("b", 2, [5, 6], new=6)])
    second = selected(s)
    assert second.new_blocks["b"][1] in first.new_blocks["a"][:2]
    s.scheduler.update(s.result_of(first))
    s.scheduler.update(s.result_of(second))
    assert selected(s).full_blocks == named([*range(10, 14)], first.new_blocks["a"][:1])


def test_the_next_owner_computes_less_than_a_block_and_one_token() -> None:
    prompt, table = [*range(10, 21)], [5, 3, 9, 7]
    for output in range(6):
        tokens = [*prompt, *range(30, 40)][: 11 + output]
        full = len(tokens) - 1  # the last token is not computed
        cached = dict(zip(table, names_of(tokens[: full - full % 4]), strict=False))
        s = owner(cached)
        s.scheduler.add([of("a", 1, prompt, output=tuple(tokens[11:]))])
        first = selected(s)
        assert first.scheduled["a"] <= 4
        assert first.new_blocks["a"][: len(cached)] == list(cached)
        assert first.full_blocks == {}  # the engine knows these names
        s.scheduler.blocks.check()


def test_of_two_blocks_with_one_name_one_is_used() -> None:
    (name,) = names_of([1, 2, 3, 4])
    s = owner({0: name, 1: name}, blocks=2)
    s.scheduler.blocks.check()
    s.scheduler.add([of("a", 1, [1, 2, 3, 4, 5], new=1)])
    assert len(set(selected(s).new_blocks["a"])) == 2


def test_a_block_beyond_the_last_is_refused() -> None:
    with pytest.raises(AssertionError, match="other blocks"):
        owner({3: b"x"}, blocks=3)


def test_without_prefix_caching_a_request_finds_its_own_blocks_and_no_other_does() -> None:
    prompt = [*range(10, 19)]
    s = owner(named(prompt[:8], [0, 1]), caching=False)
    s.scheduler.add([of("a", 1, prompt)])
    first = selected(s)
    assert first.new[0].num_computed_tokens == 0
    s.finish({"a": 19})
    s.scheduler.add([of("b", 2, prompt)])
    second = selected(s)
    assert second.new[0].num_computed_tokens == 0
    assert second.full_blocks == dict(zip(first.new_blocks["a"], names_of(prompt[:8], "a"), strict=False))
    after = owner(second.full_blocks, caching=False)
    after.scheduler.add([of("a", 1, prompt, output=(19,))])
    assert selected(after).new[0].num_computed_tokens == 8
    after.finish({"a": EOS})
    assert after.select() is None
    assert not after.scheduler.blocks.find(names_of(prompt[:8], "a"))


def test_a_request_that_may_have_killed_engines_uses_no_cached_blocks() -> None:
    prompt = [*range(10, 19)]
    for strikes, computed in ((1, 8), (2, 0)):
        s = owner(named(prompt[:8], [0, 1]))
        s.scheduler.add([of("a", 1, prompt, strikes=strikes)])
        assert selected(s).new[0].num_computed_tokens == computed


def test_what_an_earlier_owner_computed_is_not_reported_as_cached() -> None:
    prompt = [*range(10, 19)]
    for output, reported in (((), 8), ((7,), 0)):
        s = owner(named(prompt[:8], [0, 1]))
        s.scheduler.add([of("a", 1, prompt, output=output)])
        (commit,) = s.step({"a": EOS})
        assert commit.end is not None
        assert commit.end.cached == reported


def test_a_request_that_is_reset_reports_what_it_found_at_first() -> None:
    prompt = [*range(10, 19)]
    s = owner(named(prompt[:4], [0]))
    s.scheduler.add([of("a", 1, prompt, output=(), logprobs=0)])
    s.step({"a": 7})
    s.scheduler.drop(["a"])
    s.scheduler.add([of("a", 1, prompt, output=(7, 8), logprobs=0)])
    s.scheduler.rewind({"a": 0})  # log probabilities of both tokens are missing
    assert selected(s).new[0].num_computed_tokens == 8
    (commit,) = s.finish({"a": EOS})
    assert commit.end is not None
    assert commit.end.cached == 0


def test_blocks_that_waiting_requests_will_use_are_reused_last() -> None:
    """Without an empty block, a request that starts first takes blocks that no other one waits for."""
    prompt, others = [*range(10, 19)], [*range(20, 28)]
    cached = named(prompt[:8], [0, 1]) | named(others, [2, 3])
    s = owner(cached, blocks=4)
    s.scheduler.add([of("first", 1, [7], new=4), of("second", 2, prompt, new=1)])
    iteration = selected(s)
    assert iteration.new_blocks["first"] == [2, 3][: len(iteration.new_blocks["first"])]
    s.finish()
    s.scheduler.cancel(["first"])
    found = iteration.new if len(iteration.new) > 1 else selected(s).new
    assert [new.num_computed_tokens for new in found if new.id == "second"] == [8]
