"""NativePart: a rank's part of a model on a CPU."""

from __future__ import annotations

import torch

from services.engine.backends.cpu.layers import NativeLayers, as_struct
from services.engine.backends.cpu.setup import NativeSetup
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.families.weights import Table
from services.engine.parallel.layout import Layout
from services.engine.parallel.part import Sum


class NativePart(NativeLayers):
    """See Part. A token's bits depend on its request and the layout alone."""

    device = torch.device("cpu")

    def __init__(self, setup: NativeSetup, layout: Layout) -> None:
        spec, weights = setup.spec, setup.weights
        super().__init__(setup, layout.part_of(spec), layout.layers(spec.layers), layout.is_last)
        self.halves = 2 * self._part.layers
        self.embedding = weights.embedding() if layout.is_first else None
        self.positions = weights.positions() if layout.is_first and not spec.rotary else None
        self.bytes_read = weights.bytes_read

    def begin(self, batch: FlatBatch) -> NativePass:
        return NativePass(self, batch)


class NativePass:
    """See Pass."""

    def __init__(self, part: NativePart, batch: FlatBatch) -> None:
        self._part, self._batch, self._struct = part, batch, as_struct(batch)

    def embed(self) -> torch.Tensor:
        """See Pass."""
        assert self._part.embedding is not None, "the first stage embeds"
        x = _look_up(self._part.embedding, self._batch.input_ids)
        if self._part.positions is not None:
            x += _look_up(self._part.positions, self._batch.positions())
        return x

    def run(self, x: torch.Tensor, sum_up: Sum | None) -> None:
        """See Pass."""
        part = self._part
        if sum_up is None:
            return part.run(self._struct, 0, part.halves, x)
        partial = torch.empty_like(x)
        for half in range(part.halves):
            part.run(self._struct, half, half + 1, x, partial)
            x += sum_up(partial)
        return None

    def logits(self, x: torch.Tensor, tokens: Numbers) -> torch.Tensor:
        """See Pass."""
        return self._part.logits(self._struct, x, tokens)


def _look_up(table: Table, ids: Numbers) -> torch.Tensor:
    """[ids, hidden], zero where another shard has the row."""
    own = torch.from_numpy(ids).long() - table.first
    there = (own >= 0) & (own < len(table.rows))
    found = table.rows[own.where(there, 0)].to(torch.float32)
    return found.masked_fill_(~there[:, None], 0.0)
