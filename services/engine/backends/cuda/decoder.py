"""CudaDecoder: a decoder of the lean path on CUDA."""

from __future__ import annotations

import torch

from services.engine.backends.cuda.graphs import Graphs
from services.engine.backends.cuda.inputs import Inputs, send
from services.engine.backends.cuda.layers import PARTIAL_ROWS, CudaLayers
from services.engine.backends.cuda.planner import Planner
from services.engine.backends.cuda.setup import CudaSetup
from services.engine.backends.cuda.tiles import Tiles
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape


class CudaDecoder:
    """Launches an iteration and returns; the host waits only for the tokens that are drawn from the logits.

    `batch_invariant`: a token's logits depend on its request alone, bitwise: products have fixed tiles, attention one
    tile for all. Else the library's products and narrow tiles of attention for increments make them depend on who is
    in the batch.
    """

    def __init__(self, setup: CudaSetup) -> None:
        spec = setup.spec
        self.path = setup.path
        self.weight_dtype = self.cache_dtype = setup.dtype
        self._setup = setup
        self._layers = CudaLayers(setup, spec, (0, spec.layers))
        self._plan = Planner(spec, setup.tiles, setup.batch_invariant, self._layers.programs, PARTIAL_ROWS)
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None  # x and what is to be added, if prompts are scored
        self.graphs: Graphs | None = None  # None: every iteration is launched kernel by kernel

    @property
    def layers(self) -> list[LayerShape]:
        return self._layers.shapes

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on. Compiles kernels and captures graphs, which writes nothing."""
        self._layers.bind(cache)
        if self._setup.device.type == "cuda":
            longest = -(-self._setup.max_model_len // cache.block_size)
            vocab = self._setup.spec.vocab
            self.graphs = Graphs(self._run_increments, vocab, longest, PARTIAL_ROWS, self._setup.device)

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        """See Decoder; float32."""
        items, tiles = self._plan(batch)
        self._last = None
        if self.graphs and self.graphs.fit(batch):
            return self.graphs(batch, items)
        return self._run(send(batch, items, self._setup.device), tiles, keep=bool(batch.scoring))

    def logits_after(self, tokens: Numbers) -> torch.Tensor:
        """See Decoder; float32."""
        assert self._last is not None, "the last batch scored nothing"
        return self._layers.logits(torch.from_numpy(tokens).to(self._setup.device), *self._last)

    def _run_increments(self, inputs: Inputs, logits: torch.Tensor) -> None:
        self._run(inputs, self._plan.increments, logits)

    def _run(
        self, inputs: Inputs, tiles: Tiles, logits: torch.Tensor | None = None, keep: bool = False
    ) -> torch.Tensor:
        x = self._layers.embed(inputs)
        change = self._layers.run(inputs, tiles, x, None)
        if keep:
            self._last = x, change
        return self._layers.logits(inputs.ends, x, change, logits)
