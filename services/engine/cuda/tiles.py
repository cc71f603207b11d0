"""Tiles: the shape of a program's part of attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """`split` is a multiple of `keys`; all are powers of two, at least 16 for a tensor core.

    Bits depend on all three, so an engine whose bits are to depend on requests alone has one of these.
    """

    rows: int = 64  # queries: tokens times the heads that share keys
    keys: int = 64  # positions read at once
    split: int = 256  # positions after which sums begin anew

    def __post_init__(self) -> None:
        assert self.split % self.keys == 0, f"splits of {self.split} positions in tiles of {self.keys}"
