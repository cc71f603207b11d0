"""CudaDecoder: a decoder of the lean path on CUDA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from services.engine.cuda.graphs import Graphs
from services.engine.cuda.inputs import Inputs, send
from services.engine.cuda.layers import PARTIAL_ROWS, CudaLayers
from services.engine.cuda.plan import plan
from services.engine.cuda.setup import CudaSetup
from services.engine.cuda.tiles import Tiles
from services.engine.flat_batch import FlatBatch
from services.engine.kv_cache import KVCache, LayerShape

NARROW = 16  # rows of a tensor core's smallest tile


class CudaDecoder:
    """Launches an iteration and returns; the host waits only for the tokens that are drawn from the logits.

    `batch_invariant`: a token's logits depend on its request alone, bitwise: products have fixed tiles, attention one
    tile for all. Else the library's products and narrow tiles of attention for increments make them depend on who is
    in the batch.
    """

    def __init__(self, setup: CudaSetup) -> None:
        self.path = "triton invariant" if setup.batch_invariant else "triton"
        self.weight_dtype = self.cache_dtype = setup.dtype
        self._setup = setup
        self._layers = CudaLayers(setup)
        self._group = setup.spec.heads // setup.spec.kv_heads
        wide = setup.tiles
        one_for_all = setup.batch_invariant or self._group > NARROW
        self._increments = wide if one_for_all else replace(wide, rows=min(NARROW, wide.rows))
        self.graphs: Graphs | None = None  # None: every iteration is launched kernel by kernel

    @property
    def layers(self) -> list[LayerShape]:
        spec = self._setup.spec
        return [LayerShape(spec.kv_heads, spec.head_dim, spec.head_dim)] * spec.layers

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on. Compiles kernels and captures graphs, which writes nothing."""
        self._layers.bind(cache)
        if self._setup.device.type == "cuda":
            longest = -(-self._setup.max_model_len // cache.block_size)
            vocab = self._setup.spec.vocab
            self.graphs = Graphs(self._run_increments, vocab, longest, PARTIAL_ROWS, self._setup.device)

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder; float32."""
        tiles = self._tiles(batch)
        items = plan(batch, self._group, self._setup.spec.kv_heads, tiles, self._layers.programs, PARTIAL_ROWS)
        if self.graphs and self.graphs.fit(batch):
            return self.graphs(batch, items)
        return self._layers.run(send(batch, items, self._setup.device), tiles)

    def _run_increments(self, inputs: Inputs, logits: torch.Tensor) -> None:
        self._layers.run(inputs, self._increments, logits)

    def _tiles(self, batch: FlatBatch) -> Tiles:
        """Narrow ones where every request's rows fit into one."""
        most = int(np.diff(batch.starts).max()) * self._group
        return self._increments if most <= self._increments.rows else self._setup.tiles
