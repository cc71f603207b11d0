"""BlockPool: every block is free or held once."""

import pytest

from services.scheduling import BlockPool


def test_blocks_are_counted_placed_and_given_back() -> None:
    pool = BlockPool(num_blocks=5, block_size=16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    first, second = pool.reserve("a", 2), pool.reserve("b", 3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (pool.free, pool.held) == (0, 5)
    assert pool.release("a") == 2
    assert pool.release("a") == 0
    assert pool.reserve("c", 2) == first
    pool.check()


def test_what_does_not_fit_takes_nothing() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    assert pool.reserve("a", 4) is None
    assert (pool.free, pool.held) == (3, 0)
    assert pool.reserve("a", 3) is not None
    assert pool.reserve("b", 1) is None


def test_a_request_reserves_once() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    pool.reserve("a", 1)
    with pytest.raises(AssertionError, match="a holds blocks already"):
        pool.reserve("a", 1)


def test_the_check_sees_a_shared_and_a_lost_block() -> None:
    for damage in ([0, 0], []):
        pool = BlockPool(num_blocks=3, block_size=16)
        ids = pool.reserve("a", 1)
        assert ids is not None
        ids[:] = damage
        with pytest.raises(AssertionError, match="lost or shared"):
            pool.check()
