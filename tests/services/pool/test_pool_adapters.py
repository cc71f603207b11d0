"""The registry of adapters, and which requests name one: until their last sequence has ended."""

import pytest
from pool_helpers import STOP, Owner, commit, group

from services.messages import Room
from services.requests import FEATURES

ROOM = Room(8, 64, 16, features=FEATURES)


async def test_a_registry_is_replaced_by_a_later_one_alone(pool):
    assert await pool.adapters() == b""
    assert await pool.adapt(1, b"one")
    assert await pool.adapt(1, b"one")  # the call is sent again after a lost reply
    assert not await pool.adapt(1, b"another")
    assert await pool.adapt(7, b"seven")
    assert not await pool.adapt(6, b"six")
    assert not await pool.adapt(1, b"one")
    assert await pool.adapters() == b"seven"


@pytest.mark.parametrize("end", ["commit", "cancel", "delete"])
async def test_a_request_names_its_adapter_until_its_last_sequence_has_ended(pool, end):
    owner = await Owner.take(pool)
    await pool.submit(group("named", n=2, adapter="d"))
    await pool.submit(group("plain"))
    assert await pool.adapted() == {"named": "d"}
    if end == "commit":
        assert await owner.claim(ROOM) == ["named/0", "named/1", "plain/0"]
        await owner.exchange(commit("named/1", 0, 5, end=STOP))
        assert await pool.adapted() == {"named": "d"}
        await owner.exchange(commit("named/0", 0, 5, end=STOP))
    else:
        await getattr(pool, end)("named")
    assert await pool.adapted() == {}
