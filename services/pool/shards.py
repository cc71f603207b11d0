"""Shards: several pools that serve one model behind one API.

A request belongs to one model and to one shard of it for its whole life, and its id names both. Idempotency keys hash
to `SLOTS` slots, and each slot is assigned to a shard by rendezvous hashing: when a shard is added or removed, only the
slots that it gets or had change their shard.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.pool.pool import RequestPool  # settings import this module, and need no client of Redis

SLOTS = 1024
MAX_SHARDS = 1000  # they are numbered from 0 to 999
_WORD = re.compile(r"(?:(?P<number>[0-9]{1,3})(?::(?P<state>new|draining))?=)?(?P<url>\S+)")
ID_SUFFIX = r"(?:-m(?P<model>[1-9][0-9]{0,2}))?(?:-(?P<number>[1-9][0-9]{0,2}))?"
_ID = re.compile(f"(?P<name>.*?){ID_SUFFIX}", re.DOTALL)


class ShardState(StrEnum):
    """`NEW`: the requests of keys may still be in the shards that had its slots before. `DRAINING`: it gets no new
    requests; those that it has run to their end, and are found until they expire."""

    NEW = "new"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ShardUrl:
    """A shard as the settings name it. `number` is from 0 to 999; `url` may hold a password."""

    number: int
    url: str = field(repr=False)
    state: ShardState = ShardState.SERVING


@dataclass(frozen=True, slots=True)
class PoolShard:
    """A pool, and which shard it is."""

    pool: RequestPool
    number: int = 0
    state: ShardState = ShardState.SERVING


def parse_shards(text: str) -> tuple[ShardUrl, ...]:
    """Return the shards that `redis_url` names: one URL, which is shard 0, or words `NUMBER=URL`, `NUMBER:new=URL` and
    `NUMBER:draining=URL`; none if it is empty.

    Raises ValueError, which repeats no URL, since URLs may hold passwords.
    """
    words, shards = text.split(), []
    for word in words:
        found = _WORD.fullmatch(word)
        assert found, "a word is not empty"
        if found["number"] is None and len(words) > 1:
            raise ValueError("of several shards each needs its number: '0=URL 1=URL'")
        shards.append(ShardUrl(int(found["number"] or 0), found["url"], ShardState(found["state"] or "serving")))
    for shard in shards:
        if sum(other.number == shard.number for other in shards) > 1:
            raise ValueError(f"shard {shard.number} is named twice")
    if shards and all(shard.state is not ShardState.SERVING for shard in shards):
        raise ValueError("all shards are new or draining; at least one must be neither")
    return tuple(shards)


# --- ids -----------------------------------------------------------------------------------------------------


def model_of(request: str) -> int:
    """Return the number of the model that the id of a request names."""
    return int(_parts(request)["model"] or 0)


def shard_of(request: str) -> int:
    """Return the number of the shard that the id of a request names."""
    return int(_parts(request)["number"] or 0)


def in_shard(request: str, number: int, model: int = 0) -> str:
    """Return the id of the same request in a shard of a model. Model 0 and shard 0 have no suffix: `NAME-m1-2` is in
    shard 2 of model 1."""
    return _parts(request)["name"] + f"-m{model}" * bool(model) + f"-{number}" * bool(number)


def _parts(request: str) -> re.Match[str]:
    found = _ID.fullmatch(request)
    assert found, "every text matches"
    return found


# --- slots ---------------------------------------------------------------------------------------------------


def slot_of(tenant: str, key: str) -> int:
    """Return the slot of a tenant's idempotency key."""
    return int.from_bytes(hashlib.sha256(f"{tenant}\0{key}".encode()).digest()[:8]) % SLOTS


class Slots:
    """The assignment of slots to shards."""

    def __init__(self, states: Mapping[int, ShardState]) -> None:
        """`states` by the numbers of the shards; at least one is `SERVING`."""
        after = [number for number, state in states.items() if state is not ShardState.DRAINING]
        before = [number for number, state in states.items() if state is not ShardState.NEW]
        self._owners, self._former = _assigned(after), _assigned(before)

    def owner(self, slot: int) -> int:
        """Return the shard that gets the new requests of the slot's keys."""
        return self._owners[slot]

    def former(self, slot: int) -> int:
        """Return the shard that may hold earlier requests of the slot's keys: the owner, unless the slot moves."""
        return self._former[slot]


def _assigned(numbers: Iterable[int]) -> Sequence[int]:
    """The shard of each slot."""
    numbers = sorted(numbers)
    if len(numbers) == 1:
        return numbers * SLOTS
    return [max(numbers, key=lambda number: _weight(slot, number)) for slot in range(SLOTS)]


def _weight(slot: int, number: int) -> bytes:
    return hashlib.blake2b(f"{slot}/{number}".encode(), digest_size=8).digest()
