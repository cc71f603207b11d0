"""Planner: how attention of an iteration is parted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services.engine.backends.cuda.plan import plan
from services.engine.backends.cuda.tiles import Tiles
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.families.spec import DecoderSpec

NARROW = 16  # rows of a tensor core's smallest tile


class Planner:
    """For layers of `part`, whose attention has so many programs and rows of partial sums."""

    def __init__(
        self, part: DecoderSpec, tiles: Tiles, batch_invariant: bool, programs: int, partial_rows: int
    ) -> None:
        self._part, self._tiles, self._programs, self._partial_rows = part, tiles, programs, partial_rows
        one_for_all = batch_invariant or part.group > NARROW
        self.increments = tiles if one_for_all else replace(tiles, rows=min(NARROW, tiles.rows))

    def __call__(self, batch: FlatBatch) -> tuple[Numbers, Tiles]:
        """The items of its work, see `plan`, and their tiles: narrow ones where every request's rows fit into one."""
        part = self._part
        most = int(np.diff(batch.starts).max()) * part.group
        tiles = self.increments if most <= self.increments.rows else self._tiles
        return plan(batch, part.group, part.kv_heads, tiles, self._programs, self._partial_rows), tiles
