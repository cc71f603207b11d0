"""CudaPart: a rank's part of a model on a GPU."""

from __future__ import annotations

import torch

from services.engine.backends.cuda.inputs import send
from services.engine.backends.cuda.layers import PARTIAL_ROWS, CudaLayers
from services.engine.backends.cuda.planner import Planner
from services.engine.backends.cuda.setup import CudaSetup
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.parallel.layout import Layout
from services.engine.parallel.part import Sum


class CudaPart:
    """See Part. Each iteration is launched kernel by kernel."""

    def __init__(self, setup: CudaSetup, layout: Layout) -> None:
        part = layout.part_of(setup.spec)
        self.path, self.device = setup.path, setup.device
        self.weight_dtype = self.cache_dtype = setup.dtype
        self.kernels = CudaLayers(setup, part, layout.layers(setup.spec.layers), layout.is_first, layout.is_last)
        self.plan = Planner(part, setup.tiles, setup.batch_invariant, self.kernels.programs, PARTIAL_ROWS)
        self.bytes_read = setup.weights.bytes_read

    @property
    def layers(self) -> list[LayerShape]:
        return self.kernels.shapes

    def bind(self, cache: KVCache) -> None:
        """See Decoder."""
        self.kernels.bind(cache)

    def begin(self, batch: FlatBatch) -> CudaPass:
        return CudaPass(self, batch)


class CudaPass:
    """See Pass. Nothing waits for the device."""

    def __init__(self, part: CudaPart, batch: FlatBatch) -> None:
        items, self._tiles = part.plan(batch)
        self._kernels, self._inputs = part.kernels, send(batch, items, part.device)

    def embed(self) -> torch.Tensor:
        """See Pass."""
        return self._kernels.embed(self._inputs)

    def run(self, x: torch.Tensor, sum_up: Sum | None) -> None:
        """See Pass."""
        x += self._kernels.run(self._inputs, self._tiles, x, sum_up)

    def logits(self, x: torch.Tensor, tokens: Numbers) -> torch.Tensor:
        """See Pass."""
        return self._kernels.logits(torch.from_numpy(tokens).to(x.device), x, None)
