"""Shard: one of several parts of a layer."""

from __future__ import annotations

from dataclasses import dataclass

Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` parts of every layer: some KV heads with their query heads, some of the intermediate numbers."""

    rank: int = 0
    size: int = 1

    def of(self, count: int) -> Rows:
        """Its range of `count` things; shards differ by one at most.

        The later ones have more, because the first draws tokens besides.
        """
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def share(self, count: int) -> int:
        """How many of `count` things it has."""
        begin, end = self.of(count)
        return end - begin
