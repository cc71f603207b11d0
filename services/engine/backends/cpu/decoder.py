"""NativeDecoder: a decoder of the lean path on a CPU."""

from __future__ import annotations

import torch

from services.engine.backends.cpu.layers import NativeLayers, as_struct
from services.engine.backends.cpu.setup import NativeSetup
from services.engine.backends.cpu.structs import Batch
from services.engine.batch.buffers import Reused
from services.engine.batch.flat_batch import FlatBatch, Numbers


class NativeDecoder(NativeLayers):
    """All of it in one process. A token's logits depend on its request alone, bitwise: not on the batch, the chunks or
    the threads."""

    def __init__(self, setup: NativeSetup) -> None:
        spec, weights = setup.spec, setup.weights
        super().__init__(setup, spec, (0, spec.layers))
        self._hidden = Reused()
        self._last: tuple[Batch, torch.Tensor] | None = None  # what the last batch was, and what came of it
        self._embedding = weights.embedding().rows
        self._positions = None if spec.rotary else weights.positions().rows
        self.bytes_read = weights.bytes_read  # of the checkpoint

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder; float32."""
        flat = as_struct(batch)
        hidden = self._hidden(len(batch.input_ids), self._part.hidden)
        hidden[:] = self._embedding[torch.from_numpy(batch.input_ids)]
        if self._positions is not None:
            hidden += self._positions[torch.from_numpy(batch.positions())]
        self.run(flat, 0, 2 * self._part.layers, hidden)
        self._last = flat, hidden
        return self.logits(flat, hidden, batch.ends)

    def logits_after(self, tokens: Numbers) -> torch.Tensor:
        """See Decoder; float32."""
        assert self._last is not None, "nothing has been computed"
        return self.logits(*self._last, tokens)
