"""Plan: the work of attention of one iteration, in items for its programs."""

from __future__ import annotations

import numpy as np

from services.engine.backends.cuda.tiles import Tiles
from services.engine.batch.flat_batch import FlatBatch, Numbers

FIELDS = 8
LONGEST = 16  # rows of a tile whose splits may go to several programs: increments, and what is like them


def plan(batch: FlatBatch, group: int, kv_heads: int, tiles: Tiles, programs: int, partial_rows: int) -> Numbers:
    """[items, FIELDS], those with the most work first, for `programs` that take them in turn, each for every KV head.

    An item is: the flat token where its request starts; that request's rows, `group` for each token; its context; where
    its table starts; the tile's first row; the splits from and to which it goes; and, where a tile's splits are items
    each, the row of `Partials` with which theirs begin, else -1.

    A tile's splits are parted where it has more than a program's share of all of them, as long as `partial_rows`
    suffice. It changes when what is computed, and no bits.
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
