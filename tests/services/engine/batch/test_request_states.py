"""The engine checks the blocks of requests: none is given twice, and none is left when its request is released."""

import pytest

from services.engine.batch.request_state import RequestStates
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams


def start(id: str, blocks: list[int], released: list[str] | None = None) -> Iteration:
    new = NewRequest(id, [5, 6, 7], 3, SamplingParams(4))
    return Iteration("e", 1, {id: 3}, [new], {id: blocks}, released or [])


def test_a_block_of_another_request_is_refused() -> None:
    rows = RequestStates(block_size=4)
    rows.apply(start("a", [1, 2]))
    with pytest.raises(AssertionError, match="b was given another's block"):
        rows.apply(start("b", [2, 3]))


def test_a_released_block_can_be_placed_again_in_the_same_iteration() -> None:
    rows = RequestStates(block_size=4)
    rows.apply(start("a", [1, 2]))
    rows.apply(start("b", [2, 1], released=["a"]))
    rows.apply(start("b", [1, 2], released=["b"]))  # reset by the scheduler: known, released and new
    assert (len(rows), rows["b"].blocks.tolist()) == (1, [1, 2])


def test_blocks_of_no_request_are_noticed_when_no_request_is_left() -> None:
    rows = RequestStates(block_size=4)
    rows.apply(start("a", [1, 2]))
    rows["a"].blocks.remove(2)  # the damage
    with pytest.raises(AssertionError, match=r"blocks \{2\} belong to no request"):
        rows.apply(Iteration("e", 2, {}, released=["a"]))
