"""Shards: ids, keys and slots lead to the same shard at every gateway, and few slots move when a shard is added."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_helpers import group

from services.pool.shards import SLOTS, ShardState, ShardUrl, Slots, in_shard, model_of, parse_shards, shard_of, slot_of

NUMBERS = st.integers(0, 999)
NEW, SERVING, DRAINING = ShardState.NEW, ShardState.SERVING, ShardState.DRAINING
TAGS = st.just("") | st.from_regex(r"[0-9a-f]{6}", fullmatch=True)
NAMES = st.from_regex(r"(?:chatcmpl-|resp_|msg_)[0-9a-f]{32}", fullmatch=True)


def slots(*numbers: int, **states: ShardState) -> Slots:
    """The assignment to shards of which those in `states` (`s<number>`) are not just serving."""
    return Slots(dict.fromkeys(numbers, SERVING) | {int(name[1:]): state for name, state in states.items()})


@given(NAMES, st.lists(st.tuples(NUMBERS, TAGS), min_size=1, max_size=4))
def test_an_id_leads_to_its_model_and_its_shard(name: str, places: list[tuple[int, str]]) -> None:
    """However often it was placed, and back."""
    id = name
    for number, tag in places:
        id = in_shard(id, number, tag)
        assert (model_of(id), shard_of(id)) == (tag, number)
    assert in_shard(id, 0) == name
    assert shard_of(name) == 0


@given(st.text())
def test_any_text_leads_to_a_shard(text: str) -> None:
    """A client may name any id."""
    assert 0 <= shard_of(text) <= 999


@settings(max_examples=20)
@given(st.sets(NUMBERS, min_size=1, max_size=6), st.randoms(), st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_a_key_leads_to_one_shard_however_the_shards_are_listed(numbers, random, keys) -> None:
    listed = list(numbers)
    one = slots(*listed)
    random.shuffle(listed)
    other = slots(*listed)
    for tenant, key in keys:
        slot = slot_of(tenant, key)
        assert 0 <= slot < SLOTS
        assert one.owner(slot) == one.former(slot) == other.owner(slot) in numbers


@settings(max_examples=20)
@given(st.sets(NUMBERS, min_size=2, max_size=6))
def test_only_the_slots_of_an_added_shard_move(numbers: set[int]) -> None:
    added, *before = numbers
    old, new = slots(*before), slots(*numbers)
    moved = [slot for slot in range(SLOTS) if old.owner(slot) != new.owner(slot)]
    assert {new.owner(slot) for slot in moved} <= {added}
    assert abs(len(moved) - SLOTS / len(numbers)) < 6 * (SLOTS / len(numbers)) ** 0.5  # six standard deviations


def test_slots_are_spread_evenly() -> None:
    spread = Counter(map(slots(0, 1, 2, 3).owner, range(SLOTS)))
    assert all(abs(count - SLOTS / 4) < SLOTS / 20 for count in spread.values())


@settings(max_examples=20)
@given(st.sets(NUMBERS, min_size=3, max_size=6))
def test_new_and_draining_shards(numbers: set[int]) -> None:
    """Earlier requests of a slot are where they were before the new shard came; new ones go where they will be when the
    draining shard is gone."""
    new, draining, *serving = numbers
    moving = Slots(dict.fromkeys(serving, SERVING) | {new: NEW, draining: DRAINING})
    before, after = slots(*serving, draining), slots(*serving, new)
    for slot in range(SLOTS):
        assert (moving.former(slot), moving.owner(slot)) == (before.owner(slot), after.owner(slot))


def test_the_shards_that_a_url_names() -> None:
    assert parse_shards("") == ()
    assert parse_shards("redis://a/1?x=2") == (ShardUrl(0, "redis://a/1?x=2"),)
    assert parse_shards("3=redis://a") == (ShardUrl(3, "redis://a"),)
    several = "0=redis://:p=w@a\n1:new=rediss://b 12:draining=unix:///c\n"
    found = (
        ShardUrl(0, "redis://:p=w@a"),
        ShardUrl(1, "rediss://b", NEW),
        ShardUrl(12, "unix:///c", DRAINING),
    )
    assert parse_shards(several) == found
    assert "p=w" not in repr(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("redis://:secret@a redis://b", "of several shards each needs its number"),
        ("1=redis://:secret@a 01=redis://b", "shard 1 is named twice"),
        ("0:new=redis://:secret@a 1:draining=redis://b", "all shards are new or draining"),
    ],
)
def test_a_list_that_is_wrong(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error) as raised:
        parse_shards(text)
    assert "secret" not in str(raised.value)


async def test_a_pool_knows_what_a_submission_would_find(pool) -> None:
    """By id or by key, of its own tenant."""
    assert not await pool.knows("a", "default", "k")
    await pool.submit(group("a", key="k"))
    assert await pool.knows("a", "default", None)
    assert await pool.knows("b", "default", "k")
    assert not await pool.knows("b", "default", None)
    assert not await pool.knows("b", "other", "k")
    await pool.delete("a")
    assert not await pool.knows("a", "default", "k")
