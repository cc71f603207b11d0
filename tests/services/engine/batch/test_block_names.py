"""A name stands for what its block contains: names are learned after the iteration that filled the block, and forgotten
before a request writes to it."""

from __future__ import annotations

import pytest

from services.engine.batch.block_names import BlockNames
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

SIZE = 4


def start(id: str, blocks: list[int], computed: int = 0, named: dict[int, bytes] | None = None) -> Iteration:
    new = NewRequest(id, [5] * 4 * len(blocks), 4 * len(blocks), SamplingParams(4), computed)
    return Iteration("e", 1, {id: 1}, [new], {id: blocks}, full_blocks=named or {})


def named(names: dict[int, bytes]) -> Iteration:
    return Iteration("e", 2, {}, full_blocks=names)


@pytest.fixture
def names() -> BlockNames:
    names = BlockNames(SIZE)
    names.begin(start("a", [3, 1, 2]))
    names.begin(named({3: b"x", 1: b"y"}))
    return names


def test_they_are_learned_in_order(names: BlockNames) -> None:
    names.begin(named({2: b"z"}))
    assert list(names.as_dict().items()) == [(3, b"x"), (1, b"y"), (2, b"z")]


def test_a_block_that_is_given_to_a_request_loses_its_name(names: BlockNames) -> None:
    names.begin(start("b", [0, 3]))
    assert names.as_dict() == {1: b"y"}
    names.begin(Iteration("e", 3, {"b": 1}, new_blocks={"b": [1]}))
    assert names.as_dict() == {}
    names.begin(named({3: b"v"}))
    assert names.as_dict() == {3: b"v"}


def test_a_block_that_a_request_shares_keeps_its_name(names: BlockNames) -> None:
    names.begin(start("b", [3, 1, 0], computed=2 * SIZE))
    assert names.as_dict() == {3: b"x", 1: b"y"}
    names.begin(start("c", [3, 1, 0], computed=SIZE))
    assert names.as_dict() == {3: b"x"}


def test_blocks_of_a_failed_request_get_no_names_until_they_are_written_again(names: BlockNames) -> None:
    names.fail([1, 2])
    names.begin(named({2: b"z"}))  # sent before the failure was known
    assert names.as_dict() == {3: b"x"}
    names.begin(start("b", [2]))
    names.begin(named({2: b"w"}))
    assert names.as_dict() == {3: b"x", 2: b"w"}


def test_a_block_is_not_both_full_and_to_be_written(names: BlockNames) -> None:
    with pytest.raises(AssertionError, match="block 2 is full, and b is to write it"):
        names.begin(start("b", [2], named={2: b"z"}))
