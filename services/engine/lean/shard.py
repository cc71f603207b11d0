"""Shard: one of several parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass

Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts of every layer: some heads, some of the intermediate numbers."""

    rank: int = 0
    size: int = 1

    def of(self, count: int) -> Rows:
        """Its range of `count` things, which are as many for each."""
        assert count % self.size == 0, f"{count} in {self.size} parts"
        return self.some_of(count)

    def some_of(self, count: int) -> Rows:
        """Its range of `count` things, of which the last shards may have fewer."""
        part = -(-count // self.size)
        return min(count, self.rank * part), min(count, (self.rank + 1) * part)
