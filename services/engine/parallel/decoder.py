"""RankDecoder: one rank's part of a decoder of the lean path."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from services.engine.flat_batch import FlatBatch, Numbers
from services.engine.lean.shard import Shard
from services.engine.lean.weights import Table
from services.engine.native.layers import NativeLayers, as_struct
from services.engine.native.setup import NativeSetup
from services.engine.native.structs import Batch
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links


class RankDecoder(NativeLayers):
    """A stage's layers, of each a shard (paper, figures 6 and 7); in the first stage a shard of the embedding, in the
    last of the vocabulary.

    What the ranks of a stage add to x is summed in their order, so a token's logits depend on its request and the
    layout, bitwise, and on nothing else.
    """

    def __init__(self, setup: NativeSetup, layout: Layout) -> None:
        spec, weights = setup.spec, setup.weights
        super().__init__(setup, layout.part_of(spec), layout.layers(spec.layers), layout.is_last)
        self.path += f" {layout}"
        self._layout = layout
        self._vocab = spec.vocab
        self._embedding = weights.embedding() if layout.is_first else None
        self._positions = weights.positions() if layout.is_first and not spec.rotary else None
        self.bytes_read = weights.bytes_read  # of the checkpoint
        self.links: Links | None = None

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """Logits [sampling, vocab], float32, on the rank that samples; None on the others."""
        links, layout, flat = self.links, self._layout, as_struct(batch)
        assert links is not None, "not linked to the other ranks"
        if layout.is_first:
            x = self._embed(batch, links)
        else:
            x = torch.empty(len(batch.input_ids), self._part.hidden)
            links.receive(x)
        self._run(flat, x, links)
        if not layout.is_last:
            links.send(x)
            return None
        logits = self._gather(self.logits(flat, x), links)
        return logits if layout.rank == layout.sampler else None

    def _gather(self, logits: torch.Tensor, links: Links) -> torch.Tensor:
        """The shards [sampling, part of vocab] as one; all are sent with as many columns, some have one fewer."""
        if not len(logits):
            return logits.new_empty(0, self._vocab)
        shares = [Shard(rank, self._layout.tp).share(self._vocab) for rank in range(self._layout.tp)]
        parts = links.collect(pad(logits, (0, max(shares) - logits.shape[1])))
        return torch.cat([part[:, :share] for part, share in zip(parts, shares, strict=True)], dim=1)

    def _embed(self, batch: FlatBatch, links: Links) -> torch.Tensor:
        """Each rank has zeros for tokens and positions that are another's."""
        assert self._embedding is not None
        x = _look_up(self._embedding, batch.input_ids)
        if self._positions is not None:
            x += _look_up(self._positions, batch.positions())
        return links.sum_up(x)

    def _run(self, batch: Batch, x: torch.Tensor, links: Links) -> None:
        halves = 2 * self._part.layers
        if self._layout.tp == 1:
            return self.run(batch, 0, halves, x)
        partial = torch.empty_like(x)
        for half in range(halves):
            self.run(batch, half, half + 1, x, partial)
            x += links.sum_up(partial)
        return None


def _look_up(table: Table, ids: Numbers) -> torch.Tensor:
    """[ids, hidden], zero where another shard has the row."""
    own = torch.from_numpy(ids).long() - table.first
    there = (own >= 0) & (own < len(table.rows))
    found = table.rows[own.where(there, 0)].to(torch.float32)
    return found.masked_fill_(~there[:, None], 0.0)
