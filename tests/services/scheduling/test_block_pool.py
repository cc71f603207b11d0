"""BlockPool: every block is empty, idle or held as often as it is in tables; prefixes are found until they are
evicted.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduling import BlockPool


def test_blocks_are_allocated_counted_and_released() -> None:
    pool = BlockPool(num_blocks=5, block_size=16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    pool.allocate("a", [], 2)
    pool.allocate("b", [], 2)
    pool.extend("b", 1)
    first = list(pool.table("a"))
    assert sorted(first + pool.table("b")) == [0, 1, 2, 3, 4]
    assert (pool.free, pool.held) == (0, 5)
    assert pool.release("a") == 2
    assert pool.release("a") == 0
    pool.allocate("c", [], 2)
    assert pool.table("c") == first  # the ones used last
    pool.check()


def test_fits() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    assert not pool.fits([], 4)
    assert pool.fits([], 3)
    assert not pool.fits([], 3, margin=1)
    pool.allocate("a", [], 3)
    assert not pool.fits([], 1)
    with pytest.raises(AssertionError, match="1 blocks for a, 0 are free"):
        pool.extend("a", 1)


def test_a_request_allocates_once() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    pool.allocate("a", [], 1)
    with pytest.raises(AssertionError, match="a holds blocks already"):
        pool.allocate("a", [], 1)


def test_published_blocks_are_shared_and_outlive_their_holders() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    pool.allocate("a", [], 3)
    x, y, _ = pool.table("a")
    pool.publish("a", 0, b"x")
    pool.publish("a", 1, b"y")
    assert pool.find([b"x", b"y", b"z"]) == [x, y]
    assert pool.find([b"z", b"x"]) == []  # nothing after the first hash without a block
    assert pool.fits([x, y], 3)
    pool.allocate("b", [x, y], 3)
    assert pool.table("b")[:2] == [x, y]
    assert pool.held == 4
    pool.release("a")
    assert pool.held == 3
    pool.release("b")
    assert pool.free == 4
    assert pool.find([b"x", b"y"]) == [x, y]
    pool.check()


def test_idle_blocks_are_evicted_from_the_end_of_a_prefix() -> None:
    pool = BlockPool(num_blocks=3, block_size=16)
    pool.allocate("a", [], 3)
    for index, key in enumerate([b"x", b"y", b"z"]):
        pool.publish("a", index, key)
    x, y, _ = pool.table("a")
    pool.release("a")
    pool.allocate("b", [], 1)  # no block is empty: the last one of the prefix is evicted
    assert pool.find([b"x", b"y", b"z"]) == [x, y]
    assert pool.fits([x], 2)
    assert not pool.fits([x, y], 3)  # only the two idle ones are left
    pool.allocate("c", [x], 2)
    assert pool.find([b"x", b"y"]) == [x]
    pool.check()


def test_of_blocks_with_equal_content_the_first_is_found() -> None:
    pool = BlockPool(num_blocks=2, block_size=16)
    pool.allocate("a", [], 1)
    pool.allocate("b", [], 1)
    pool.publish("a", 0, b"x")
    pool.publish("b", 0, b"x")
    assert pool.find([b"x"]) == pool.table("a")
    pool.release("b")
    pool.check()


def test_blocks_of_a_failed_request_are_found_only_if_others_hold_them() -> None:
    pool = BlockPool(num_blocks=4, block_size=16)
    pool.allocate("a", [], 2)
    pool.publish("a", 0, b"x")
    pool.publish("a", 1, b"y")
    pool.allocate("b", pool.find([b"x"]), 2)
    pool.unpublish("a")
    pool.release("a")
    assert pool.find([b"x", b"y"]) == pool.table("b")[:1]
    pool.check()


def test_the_check_finds_a_shared_and_a_lost_block() -> None:
    for damage in ([0, 0], []):
        pool = BlockPool(num_blocks=3, block_size=16)
        pool.allocate("a", [], 1)
        pool.table("a")[:] = damage
        with pytest.raises(AssertionError, match="lost or shared"):
            pool.check()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4), st.integers(0, 9)), max_size=40))
def test_accounts_are_consistent_after_any_steps(steps: list[tuple[str, int, int]]) -> None:
    """Each step starts a request with one of few prefixes or, if it runs, makes it grow or end."""
    pool = BlockPool(num_blocks=6, block_size=16)
    for request, blocks, choice in steps:
        chain = [bytes([choice % 3, index]) for index in range(blocks)]
        if not pool.table(request):
            shared = pool.find(chain)
            if pool.fits(shared, blocks + 1):
                pool.allocate(request, shared, blocks + 1)
                for index, key in enumerate(chain):
                    pool.publish(request, index, key)
        elif choice < 5 and pool.free:
            pool.extend(request, 1)
        else:
            if choice == 9:
                pool.unpublish(request)
            pool.release(request)
        pool.check()
