"""Tiles: the shape of a program's part of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tiles:
    """`split` is a multiple of `keys`; all are powers of two, at least 16 for a tensor core.

    Bits depend on all three, so an engine whose bits are to depend on requests alone has one of these.
    """

    rows: int  # queries: tokens times the heads that share keys
    keys: int  # positions read at once
    split: int  # positions after which sums begin anew

    @classmethod
    def fitting(cls, dtype: torch.dtype, dim: int) -> Tiles:
        """The largest for queries [rows, dim] of this dtype whose sums a program can hold in registers."""
        if int(dtype.itemsize) > 2:  # no tensor cores: each thread holds what it multiplies
            return cls(rows=16, keys=32, split=256)
        return cls(rows=64 if dim <= 128 else 16, keys=64, split=256)

    def __post_init__(self) -> None:
        assert self.split % self.keys == 0, f"splits of {self.split} positions in tiles of {self.keys}"
