"""Admission on demand: which request is preempted when blocks run out, and that all requests end."""

from dataclasses import replace

import pytest

from services.messages import Commit, End, NewRequest, Room
from services.requests import BATCH_CLASS, FinishReason, SamplingParams
from services.scheduling import Knobs
from tests.services.scheduling.scripted import EOS, WORD, Script, claim, scripted

LENGTH = End(FinishReason.LENGTH)


def started(blocks: int, priority: int = 0, **knobs: object) -> Script:
    """Start two requests with prompts of 4 tokens, whose lengths do not fit at the same time."""
    s = scripted(blocks=blocks, knobs=Knobs(4, admission="on_demand", **knobs))  # type: ignore[arg-type]
    s.scheduler.add([replace(claim(id, rank, 4, 16), priority=priority) for rank, id in enumerate("ab", 1)])
    return s


def test_more_requests_run_than_with_reservation() -> None:
    s = started(blocks=8)
    s.step()
    assert (list(s.batch), s.scheduler.blocks.held) == (["a", "b"], 2)  # 10 blocks by their limits
    iteration = s.select()
    assert iteration is not None
    assert {id: len(blocks) for id, blocks in iteration.new_blocks.items()} == {"a": 1, "b": 1}
    s.finish()
    for _ in range(3):
        iteration = s.select()
        assert iteration is not None
        assert iteration.new_blocks == {}  # the block just begun holds four tokens
        s.finish()


@pytest.mark.parametrize("priority", [0, BATCH_CLASS])
def test_the_last_request_is_preempted_and_recomputed_when_another_one_has_ended(priority: int) -> None:
    s = started(blocks=6, priority=priority)  # 2 requests with 3 blocks, which are full with 12 tokens each
    for _ in range(9):
        s.step()
    assert s.scheduler.blocks.free == 0
    iteration = s.select()
    assert iteration is not None
    assert (list(iteration.scheduled), iteration.released) == (["a"], ["b"])
    s.finish()
    s.scheduler.add([replace(claim(id, 1.5, 1, 1), priority=priority) for id in ("c", "waits")])
    s.scheduler.cancel(["waits"])  # which gives no blocks back
    s.step()
    assert list(s.batch) == ["a"]  # c does not start, although blocks are free, because no request has ended
    s.step({"a": EOS})
    iteration = s.select()
    assert iteration is not None
    assert iteration.scheduled == {"c": 1, "b": 13}
    assert iteration.new[1] == NewRequest("b", [WORD] * 13, 4, SamplingParams(16))
    assert s.finish() == [Commit("c", 0, [WORD], end=LENGTH), Commit("b", 9, [WORD])]
    assert s.scheduler.take_counters()["vllm:num_preemptions"] == 1


def test_the_last_request_that_needs_a_block_is_preempted_itself() -> None:
    s = scripted(blocks=4, knobs=Knobs(4, admission="on_demand"))
    s.scheduler.add([claim("a", 1, 5, 11), claim("b", 2, 5, 11)])
    s.step()
    assert list(s.batch) == ["a"]  # one block must stay free for the running request, so b waits
    s = scripted(blocks=5, knobs=Knobs(4, admission="on_demand"))
    s.scheduler.add([claim("a", 1, 5, 11), claim("b", 2, 8, 12)])
    s.step()
    assert list(s.batch) == ["a", "b"]
    s.step()  # b takes the last block
    for _ in range(3):
        s.step()
    assert s.select() is not None  # a needs a block, and b is the last one
    assert list(s.batch) == ["a"]


def test_room_counts_current_tokens_and_is_empty_while_blocks_are_short() -> None:
    s = started(blocks=6)
    assert s.scheduler.room() == Room(2, 4, 4, whole=False, longest=24)
    s.step()
    assert s.scheduler.room() == Room(2, 2, 4, whole=False, longest=24)  # one block is kept for each running request
    for _ in range(9):
        s.step()
    assert s.scheduler.room() == Room(0, 0, 4, whole=False, longest=24)
    s = started(blocks=9)
    s.scheduler.add([claim("c", 3, 4, 16), claim("d", 4, 4, 16)])
    while not (iteration := s.select()) or not iteration.released:
        s.finish()
    assert list(iteration.scheduled) == ["a", "b", "c"]
    assert s.scheduler.room().guests == 0, "a guest has no blocks to start with"


def test_the_token_of_a_request_that_is_preempted_in_flight_counts() -> None:
    s = started(blocks=6, lookahead=1)
    flights = [s.select()]
    while True:
        flights.append(s.select())
        assert flights[-1] is not None
        if "b" in flights[-1].released:
            break
        assert flights[0] is not None
        s.scheduler.update(s.result_of(flights.pop(0)))  # type: ignore[arg-type]
    before = flights[0]
    assert before is not None
    assert "b" in before.scheduled
    s.scheduler.take_commits()
    s.scheduler.update(s.result_of(before, {"b": 33}))
    assert Commit("b", 8, [33]) in s.scheduler.take_commits()
