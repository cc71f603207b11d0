"""A batch has one owner, also while gateways with two lists of shards run side by side."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from stack import Server, Stack
from waiting import wait_until

from gateway.batches.lease import BatchLease
from services.errors import PoolUnavailable
from services.pool.shards import ShardState, Slots, slot_of
from services.settings.settings import Settings

BOTH = Slots({0: ShardState.SERVING, 1: ShardState.SERVING})
_numbers = itertools.count()
GatewayOn = Callable[[str], Stack]


def batch_of_shard_1() -> str:
    """A new id of a batch whose lock belongs to shard 1 of two, and thus to shard 0 when it is alone."""
    ids = (f"batch_{number}" for number in _numbers)
    return next(id for id in ids if BOTH.owner(slot_of("", f"batch:{id}")) == 1)


def lease(stack: Stack, id: str) -> BatchLease:
    return BatchLease(stack.app.state.gateway.first, id)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as exits:
        yield [exits.enter_context(Server(tmp_path_factory.mktemp(f"shard-{number}"))) for number in (0, 1)]


@pytest.fixture(scope="module")
def gateway_on(servers: list[Server], tiny_folder: Path) -> Iterator[GatewayOn]:
    """Starts a gateway on the shards of these words, such as '0 1:new'; once for the same words."""
    name, known = f"leases-{secrets.token_hex(4)}", dict[str, Stack]()
    with ExitStack() as exits:

        def start(words: str) -> Stack:
            if words not in known:
                urls = " ".join(f"{word}={servers[int(word[0])].url}" for word in words.split())
                stack = exits.enter_context(Stack(urls, name, tiny_folder, Settings(), engine=False))
                wait_until(lambda: hasattr(stack.app.state, "gateway"))  # it is made when the server starts
                known[words] = stack
            return known[words]

        yield start


STEPS = [("0", "0 1:new"), ("0 1:new", "0 1"), ("0 1", "0 1:draining"), ("0 1:draining", "0")]


@pytest.mark.parametrize(("old", "new"), STEPS)
@pytest.mark.parametrize("new_first", [False, True])
def test_one_owner_with_two_lists_of_shards(gateway_on: GatewayOn, old: str, new: str, new_first: bool) -> None:
    stacks = [gateway_on(old), gateway_on(new)]
    first, second = reversed(stacks) if new_first else stacks
    id = batch_of_shard_1()
    owner, other = lease(first, id), lease(second, id)
    assert first.call(owner.take())
    assert not second.call(other.take())
    assert first.call(owner.renew()), "the failed attempt took nothing"
    first.call(owner.give_up())
    assert second.call(lease(second, id).take()), "neither the owner nor the failed attempt holds a lock"


@pytest.mark.parametrize("away", [0, 1])
def test_a_shard_away_while_the_lock_moves(servers: list[Server], gateway_on: GatewayOn, away: int) -> None:
    """The owner goes on; a batch without an owner waits for both shards."""
    stack, id, free = gateway_on("0 1:new"), batch_of_shard_1(), batch_of_shard_1()
    owner = lease(stack, id)
    assert stack.call(owner.take())
    servers[away].call(servers[away].server.stop())
    try:
        assert stack.call(owner.renew())
        with pytest.raises(PoolUnavailable):
            stack.call(lease(stack, free).take())
        stack.call(owner.give_up())
    finally:
        servers[away].call(servers[away].server.start())
    assert stack.call(lease(stack, free).take()), "the attempt that failed holds no lock"


@pytest.mark.parametrize("shard", [0, 1])
def test_an_owner_that_loses_one_of_two_locks_ends(gateway_on: GatewayOn, shard: int) -> None:
    stack, id = gateway_on("0 1:new"), batch_of_shard_1()
    owner = lease(stack, id)
    assert stack.call(owner.take())
    pool = stack.pools[shard]
    stack.call(pool.unhold(f"batch:{id}", owner.holder))  # as if the lease had run out
    assert stack.call(pool.hold(f"batch:{id}", "another", 10.0))
    assert not stack.call(owner.renew())
