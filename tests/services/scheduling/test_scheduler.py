"""Algorithm 1, step by step: the requests of each iteration, and the blocks that are held after it.

Blocks hold 4 tokens; requests are `claim(id, arrival, prompt tokens, new tokens)`.
"""

import pytest

from services.messages import Claim, Commit, End, NewRequest, Room
from services.requests import FinishReason, SamplingParams
from services.text import TextTables
from tests.services.scheduling.scripted import EOS, WORD, claim, scripted

LENGTH = End(FinishReason.LENGTH)


def test_requests_are_served_in_order_and_join_later() -> None:
    s = scripted(batch=2)
    s.scheduler.add([claim("b", 2, 5, 2), claim("a", 1, 8, 3), claim("c", 3, 3, 1)])
    steps = []
    while s.select():
        steps.append((dict(s.batch), s.scheduler.blocks.held))
        s.finish()
    assert steps == [
        ({"a": 8, "b": 5}, 3 + 2),  # whole prompts, by arrival; prompt + new tokens reserved
        ({"a": 1, "b": 1}, 5),
        ({"a": 1, "c": 3}, 3 + 1),  # b has ended: c joins in the next iteration, beside an increment
    ]
    assert s.scheduler.blocks.held == 0


def test_the_selection_stops_at_the_first_request_that_does_not_fit() -> None:
    s = scripted(blocks=4)
    s.scheduler.add([claim("a", 1, 5, 3), claim("big", 2, 8, 4), claim("tiny", 3, 1, 1)])
    s.step()
    assert s.batch == {"a": 5}  # tiny would fit, but must not overtake
    assert s.scheduler.blocks.held == 2
    s.step()
    s.step()  # a ends here
    assert s.scheduler.blocks.held == 0
    s.step()
    assert s.batch == {"big": 8, "tiny": 1}
    assert s.scheduler.blocks.held == 3


def test_no_request_is_preempted_while_blocks_are_short() -> None:
    s = scripted(blocks=3)
    s.scheduler.add([claim("a", 1, 4, 8)])
    s.step()
    s.scheduler.add([claim("b", 2, 1, 1)])
    for _ in range(7):
        s.step()
        assert s.batch == {"a": 1}
    s.step()
    assert s.batch == {"b": 1}


def test_messages_to_the_engine() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 5, 2)])
    first = s.select()
    assert first is not None
    assert (first.epoch, first.step) == ("e1", 1)
    assert first.new == [NewRequest("a", [WORD] * 5, 5, SamplingParams(2))]
    assert len(first.new_blocks["a"]) == 2
    s.finish()
    s.scheduler.add([claim("b", 2, 1, 1)])
    s.step()  # a ends here
    third = s.select()
    assert third is None  # the release waits for an iteration to go with
    s.scheduler.add([claim("c", 3, 1, 1)])
    third = s.select()
    assert third is not None
    assert (third.step, third.released, list(third.new_blocks)) == (3, ["a", "b"], ["c"])


def test_commits_carry_tokens_once_and_the_end_with_the_last() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 4)])
    assert s.step({"a": 11}) == [Commit("a", 0, [11])]
    assert s.scheduler.take_commits() == []
    assert not s.scheduler.has_commits()
    for token in (12, 13):  # the pool is away, and commits are not taken
        iteration = s.select()
        assert iteration is not None
        s.scheduler.update(s.result_of(iteration, {"a": token}))
    assert s.scheduler.has_commits()
    assert s.step({"a": 14}) == [Commit("a", 1, [12, 13, 14], end=LENGTH)]


def test_logprobs_are_committed_with_their_tokens() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 3, 2, logprobs=1), claim("b", 2, 3, 2)])
    commits = s.step({"a": 11})
    assert [len(c.logprobs) if c.logprobs is not None else None for c in commits] == [1, None]
    assert commits[0].logprobs is not None
    assert commits[0].logprobs[0].top == [(11, -0.5)]


def test_a_request_resumes_at_its_next_index() -> None:
    s = scripted()
    s.scheduler.add([claim("a", 1, 6, 4, output=(21, 22))])
    iteration = s.select()
    assert iteration is not None
    assert iteration.new == [NewRequest("a", [WORD] * 6 + [21, 22], 6, SamplingParams(4))]
    assert iteration.scheduled == {"a": 8}  # recomputed in one go
    assert s.scheduler.blocks.held == 3  # output is part of prompt + max_new_tokens
    assert s.finish({"a": 23}) == [Commit("a", 2, [23])]
    assert s.step({"a": 24}) == [Commit("a", 3, [24], end=LENGTH)]


def test_a_stop_string_that_began_before_the_claim_is_found() -> None:
    s = scripted(text=TextTables([b"E", b"ND"], frozenset()))
    s.scheduler.add([claim("a", 1, 6, 9, output=(0,), stop=("END",))])
    assert s.step({"a": 1}) == [Commit("a", 1, [1], end=End(FinishReason.STOP, "END", cut=3))]


def test_a_claimed_request_that_has_already_ended_does_not_run() -> None:
    s = scripted()
    went_on = claim("c", 3, 6, 9, output=(EOS, 21))  # its previous owner had other rules
    s.scheduler.add([claim("a", 1, 6, 2, output=(21, 22)), claim("b", 2, 6, 9, output=(EOS,)), went_on])
    assert s.scheduler.take_commits() == [
        Commit("a", 2, [], end=LENGTH),
        Commit("b", 1, [], end=End(FinishReason.STOP)),
    ]
    s.step()
    assert s.batch == {"c": 8}


def test_an_earlier_request_that_arrives_late_does_not_stop_running_ones() -> None:
    """After the death of its owner an early request can arrive behind later ones that hold the blocks it needs."""
    s = scripted(blocks=3, batch=1)
    s.scheduler.add([claim("late", 5, 4, 3)])
    s.step()
    s.scheduler.add([claim("early", 1, 8, 4)])
    s.step()
    assert s.batch == {"late": 1}
    s.step()
    s.step()
    assert s.batch == {"early": 8}


@pytest.mark.parametrize(
    ("impossible", "why"),
    [
        (claim("x", 1, 40, 1), "the prompt has 40 tokens, the model's length is 40"),
        (claim("x", 1, 3, 1, logit_bias={5: 1.0, 100: 1.0}), "token id 100 is outside the vocabulary of 100"),
        (claim("x", 1, 3, 1, allowed_token_ids=(5, 101)), "token id 101 is outside the vocabulary of 100"),
        (claim("x", 1, 3, 1, bad_words=((5,), (6, 102))), "token id 102 is outside the vocabulary of 100"),
        (Claim("x", 1, [5], [], SamplingParams(1), unreadable="of a later build"), "of a later build"),
        (Claim("x", 1, [5, -1], [], SamplingParams(1)), "token id -1 is outside the vocabulary of 100"),
        (Claim("x", 1, [5, 100, 5], [], SamplingParams(1)), "token id 100 is outside the vocabulary of 100"),
        (claim("x", 1, 20, 9), "the request needs 8 KV blocks, this engine has 7"),
    ],
)
def test_a_request_that_can_never_run_here_fails_alone(impossible: Claim, why: str) -> None:
    s = scripted(blocks=7, length=40)
    s.scheduler.add([impossible, claim("ok", 2, 3, 1)])
    s.step()
    assert s.batch == {"ok": 3}
    assert s.commits == [
        Commit("x", 0, [], end=End(FinishReason.ERROR, error=why)),
        Commit("ok", 0, [WORD], end=LENGTH),
    ]


def test_room_counts_requests_whose_last_token_is_in_flight_as_ended() -> None:
    s = scripted(blocks=10, batch=3)
    assert s.scheduler.room() == Room(3, 10, 4, longest=40)
    s.scheduler.add([claim("a", 1, 4, 1), claim("b", 2, 4, 2)])
    assert s.scheduler.room() == Room(1, 6, 4, longest=40)  # they wait, their blocks are as good as taken
    s.select()
    assert s.scheduler.room() == Room(2, 8, 4, longest=40)  # a ends by length in this iteration
    s.scheduler.add([claim("c", 3, 4, 12), claim("d", 4, 4, 12)])
    assert s.scheduler.room() == Room(0, 0, 4, longest=40, guests=1, tenants=["default"])
    s.finish()
    assert s.scheduler.room() == Room(0, 0, 4, longest=40)
    s.step()
    assert list(s.batch) == ["b", "c", "d"]
    assert s.scheduler.gauges() == {"kv_usage": 0.8, "paused": 0}
