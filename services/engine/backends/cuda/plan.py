"""Plan: the work of attention of one iteration, as items for the programs of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.families.spec import DecoderSpec

FIELDS = 8
LONGEST = 16  # rows of a tile whose splits may go to several programs: increments and similar work
NARROW = 16  # rows of a tensor core's smallest tile


@dataclass(frozen=True, slots=True)
class Tiles:
    """The shape of a program's part of attention. `split` is a multiple of `keys`; all are powers of two, and at least
    16 for a tensor core.

    Bits depend on all three, so an engine whose bits must depend on requests alone has one of these.
    """

    rows: int  # queries: tokens times the heads that share keys
    keys: int  # positions read at once
    split: int  # positions after which sums begin anew

    @classmethod
    def fitting(cls, dtype: torch.dtype, dim: int) -> Tiles:
        """The largest tiles for queries [rows, dim] of this dtype whose sums a program can hold in registers."""
        if int(dtype.itemsize) > 2:  # no tensor cores: each thread holds what it multiplies
            return cls(rows=16, keys=32, split=256)
        return cls(rows=64 if dim <= 128 else 16, keys=64, split=256)

    def __post_init__(self) -> None:
        assert self.split % self.keys == 0, f"splits of {self.split} positions in tiles of {self.keys}"


class Planner:
    """Plans iterations for layers of `part`, whose attention has so many programs and rows of partial sums."""

    def __init__(
        self, part: DecoderSpec, tiles: Tiles, batch_invariant: bool, programs: int, partial_rows: int
    ) -> None:
        self._part, self._tiles, self._programs, self._partial_rows = part, tiles, programs, partial_rows
        one_for_all = batch_invariant or part.group > NARROW
        self.increments = tiles if one_for_all else replace(tiles, rows=min(NARROW, tiles.rows))

    def __call__(self, batch: FlatBatch) -> tuple[Numbers, Tiles]:
        """The items of work, see `plan`, and their tiles: narrow ones if every request's rows fit into one."""
        part = self._part
        most = int(np.diff(batch.starts).max()) * part.group
        tiles = self.increments if most <= self.increments.rows else self._tiles
        return plan(batch, part.group, part.kv_heads, tiles, self._programs, self._partial_rows), tiles


def plan(batch: FlatBatch, group: int, kv_heads: int, tiles: Tiles, programs: int, partial_rows: int) -> Numbers:
    """[items, FIELDS], those with the most work first, for `programs` that take them in turn, each for every KV head.

    The fields of an item: the flat token where its request starts; that request's rows, `group` for each token; its
    context; where its table starts; the tile's first row; the first split and the end of its splits; and, if the splits
    of a tile are items of their own, the row of `Partials` where theirs begin, else -1.

    A tile's splits become items of their own if it has more than a program's share of all splits, as long as
    `partial_rows` suffice. That changes when something is computed, and no bits.
    """
    rows = np.diff(batch.starts) * group
    counts = -(-rows // tiles.rows)
    request = np.repeat(np.arange(batch.num_requests), counts)
    number = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = number * tiles.rows
    height = np.minimum(tiles.rows, rows[request] - first)
    end = batch.contexts[request] + (first + height - 1) // group + 1
    splits = -(-end // tiles.split)

    fair = max(1, int(splits.sum()) * kv_heads // programs)
    needed = np.where((splits > fair) & (height <= LONGEST), splits * height, 0)
    parted = (needed > 0) & (np.cumsum(needed) <= partial_rows)
    partial = np.cumsum(np.where(parted, needed, 0)) - needed

    items = np.repeat(np.arange(len(request)), np.where(parted, splits, 1))
    split = np.arange(len(items)) - np.searchsorted(items, items)
    alone = ~parted[items]
    of = request[items]
    table = np.stack(
        [
            batch.starts[of],
            rows[of],
            batch.contexts[of],
            batch.table_starts[of],
            first[items],
            np.where(alone, 0, split),
            np.where(alone, splits[items], split + 1),
            np.where(alone, -1, partial[items]),
        ],
        axis=1,
    ).astype(np.int32)
    order = np.argsort(table[:, 5] - table[:, 6], kind="stable")
    ordered: Numbers = table[order]
    return ordered
