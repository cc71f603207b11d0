"""Which adapters stay in an engine's memory."""

from __future__ import annotations

from threading import Event

import numpy as np

from services.adapters.peft import LowRank
from services.engine.adapters import Adapter, Adapters

BYTES = 16  # of an adapter


class Slots:
    """Has the digests that a decoder would have."""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def put(self, digest: str, adapter: Adapter) -> None:
        self.digests.append(digest)

    def drop(self, digest: str) -> None:
        self.digests.remove(digest)


def read(digest: str) -> Adapter:
    if digest == "broken":
        raise ValueError("it is torn")
    ones = np.ones((1, 2), np.float32)
    return Adapter({"q": LowRank(ones, ones.T, 1.0)})


def test_those_needed_last_stay() -> None:
    slots = Slots()
    adapters = Adapters(slots, read, 2 * BYTES)
    for digest in ("a", "b", "a", "c"):
        assert adapters.need(digest) == ""
        adapters.shrink({digest})
    assert slots.digests == ["a", "c"]
    assert "a" in adapters
    assert "b" not in adapters


def test_those_that_requests_have_stay_whatever_they_take() -> None:
    slots = Slots()
    adapters = Adapters(slots, read, BYTES)
    needed = {"a", "b", "c"}
    for digest in sorted(needed):
        adapters.need(digest)
    adapters.shrink(needed)
    assert slots.digests == ["a", "b", "c"]
    adapters.shrink({"b"})
    assert slots.digests == ["b"]
    adapters.shrink(())
    assert slots.digests == ["b"]


def test_one_that_cannot_be_read_is_not_kept() -> None:
    slots = Slots()
    adapters = Adapters(slots, read, BYTES)
    assert adapters.need("broken") == "the adapter broken cannot be read: it is torn"
    assert slots.digests == []
    assert "broken" not in adapters


def test_what_is_read_ahead_is_there_when_it_is_needed() -> None:
    """Or not, if it cannot be read; and what nobody waits for any more goes."""
    slots, began, goes_on = Slots(), Event(), Event()

    def slowly(digest: str) -> Adapter:
        began.set()
        assert goes_on.wait(60)
        return read(digest)

    adapters = Adapters(slots, slowly, 0)
    assert adapters.read_ahead(["a", "broken", "b"]) == []
    assert began.wait(60)
    assert adapters.read_ahead(["a", "broken", "b"]) == []  # it is still read, and delays nobody
    goes_on.set()
    assert adapters.need("a") == ""
    assert adapters.need("b") == ""
    adapters.shrink({"a"})
    assert adapters.read_ahead(["broken", "c"])[:2] == ["a", "broken"]
    assert "cannot be read: it is torn" in adapters.need("broken")
    while "c" not in adapters.read_ahead(["c"]):
        pass
    assert adapters.read_ahead([]) == ["a"]
    assert slots.digests == ["a"]
