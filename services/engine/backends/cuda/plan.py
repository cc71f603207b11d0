"""Plan: the work of attention of one iteration, as items for the programs of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.spec import AttentionSpec

FIELDS = 8
Choice = np.ndarray[Any, np.dtype[np.bool_]]
NARROW = 16  # rows of a tensor core's smallest tile


@dataclass(frozen=True, slots=True)
class Tiles:
    """The shape of a program's part of attention. `split` is a multiple of `keys`; all are powers of two, and at least
    16 for a tensor core.

    Bits depend on `keys` and `split`, so all tiles of an engine have the same.
    """

    rows: int  # queries: tokens times the heads that share keys
    keys: int  # positions read at once
    split: int  # positions after which sums begin anew
    resident: int = 2  # programs that a multiprocessor runs at once
    stages: int = 5  # of a program's loads: a block is looked up before its keys are read, while others are multiplied
    warps: int = 4

    @classmethod
    def fitting(cls, dtype: torch.dtype, dim: int) -> Tiles:
        """The largest tiles for queries [rows, dim] of this dtype whose sums a program can hold in registers."""
        wide = dim > 256
        if int(dtype.itemsize) > 2:  # no tensor cores: each thread holds what it multiplies
            return cls(rows=16, keys=16, split=256, resident=1, warps=8) if wide else cls(rows=16, keys=32, split=256)
        if wide:
            return cls(rows=16, keys=32, split=256, resident=1, warps=8)
        return cls(rows=64 if dim <= 128 else 16, keys=64, split=256)

    @property
    def narrow(self) -> Tiles:
        """The tiles for few rows. Nothing is read ahead: more programs run at once, and read while others compute."""
        if self.rows <= NARROW:
            return self
        return replace(self, rows=NARROW, resident=4, stages=2)

    def __post_init__(self) -> None:
        assert self.split % self.keys == 0, f"splits of {self.split} positions in tiles of {self.keys}"


class Planner:
    """Plans iterations for layers with this attention, which runs on so many multiprocessors and has so many rows of
    partial sums."""

    def __init__(self, attention: AttentionSpec, tiles: Tiles, multiprocessors: int, partial_rows: int) -> None:
        self.attention, self.tiles = attention, tiles
        self._multiprocessors, self._partial_rows = multiprocessors, partial_rows
        self.increments = tiles if attention.queries_per_kv > NARROW else tiles.narrow

    def widen(self) -> None:
        """Plan no narrow tiles, because their bits are other ones here."""
        self.increments = self.tiles

    def most_items(self, requests: int) -> int:
        """How many items of work increments of so many requests have at most: those of whole tiles, and of parted ones,
        of which each request's have as many rows of partial sums as there are queries."""
        queries = self.attention.queries_per_kv
        return -(-queries // self.increments.rows) * (requests + self._partial_rows // queries)

    def __call__(self, batch: FlatBatch) -> tuple[Numbers, Tiles]:
        """The items of work, see `plan`, and their tiles: narrow ones if every request's rows fit into one."""
        most = int(np.diff(batch.starts).max()) * self.attention.queries_per_kv
        tiles = self.increments if most <= self.increments.rows else self.tiles
        programs = tiles.resident * self._multiprocessors
        return plan(batch, self.attention, tiles, programs, self._partial_rows), tiles


def plan(batch: FlatBatch, attention: AttentionSpec, tiles: Tiles, programs: int, partial_rows: int) -> Numbers:
    """[items, FIELDS], the longest first, each for every KV head; a program takes the next one when it is free.

    The fields of an item: the flat token where its request starts; that request's rows, `queries_per_kv` for each
    token; its context; where its table starts; the tile's first row; the first split and the end of its splits; and,
    if the splits of a tile are items of their own, the row of `Partials` where theirs begin, else -1. With a window, a
    tile's splits begin with that of the first position which its first row attends to.

    Tiles are parted into items of one split each, the longest first, until these items are as much work as every
    program needs to catch up with one that has the longest of the other tiles; `partial_rows` limit how many. Then no
    program ends more than one split after the mean (Graham, 1969), unless tiles are longer that cannot be parted. This
    decides when something is computed, and changes no bit.
    """
    queries_per_kv = attention.queries_per_kv
    rows = np.diff(batch.starts) * queries_per_kv
    counts = -(-rows // tiles.rows)
    request = np.repeat(np.arange(batch.num_requests), counts)
    number = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = number * tiles.rows
    height = np.minimum(tiles.rows, rows[request] - first)
    end = batch.contexts[request] + (first + height - 1) // queries_per_kv + 1
    begin = np.zeros_like(end)
    if attention.window:
        begin = np.maximum(batch.contexts[request] + first // queries_per_kv + 1 - attention.window, 0)
        begin -= begin % tiles.keys
    before = begin // tiles.split  # splits
    splits = -(-end // tiles.split) - before
    few = height <= max(NARROW, queries_per_kv)  # rows: increments and similar work, which has few tiles
    parted = _parted(end - begin, splits, splits * height, few, programs / attention.kv_heads, partial_rows)
    needed = np.where(parted, splits * height, 0)
    partial = np.cumsum(needed) - needed

    items = np.repeat(np.arange(len(request)), np.where(parted, splits, 1))
    split = np.arange(len(items)) - np.searchsorted(items, items)
    alone = ~parted[items]
    of = request[items]
    first_split = before[items] + np.where(alone, 0, split)
    end_split = before[items] + np.where(alone, splits[items], split + 1)
    table = np.stack(
        [
            batch.starts[of],
            rows[of],
            batch.contexts[of],
            batch.table_starts[of],
            first[items],
            first_split,
            end_split,
            np.where(alone, -1, partial[items]),
        ],
        axis=1,
    ).astype(np.int32)
    length = np.minimum(end_split * tiles.split, end[items]) - np.maximum(first_split * tiles.split, begin[items])
    ordered: Numbers = table[np.argsort(-length, kind="stable")]
    return ordered


def _parted(read: Numbers, splits: Numbers, needed: Numbers, few: Choice, programs: float, partial_rows: int) -> Choice:
    """[tiles], which ones are parted, of tiles that `read` so many positions in `splits`, and need so many rows of
    partial sums; only those with `few` rows may be. `programs` are those of a KV head."""
    able = (splits > 1) & few
    order = np.flatnonzero(able)[np.argsort(-read[able], kind="stable")]
    lengths = read[order].astype(np.int64)
    # if the tile at this place is the longest that stays whole: positions in items of one split, and the longest item
    small = np.cumsum(lengths) - lengths + int(read[splits == 1].sum())
    longest = np.maximum(lengths, read[(splits > 1) & ~few].max(initial=0))
    enough = np.append(small >= programs * longest, True)
    fitting = np.count_nonzero(np.cumsum(needed[order].astype(np.int64)) <= partial_rows)
    parted = np.zeros(len(read), np.bool_)
    parted[order[: min(int(np.argmax(enough)), fitting)]] = True
    return parted
