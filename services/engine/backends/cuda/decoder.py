"""CudaDecoder: the fast path on a GPU. Graphs: its iterations of increments as CUDA graphs, one for each of some batch
sizes, launched by a single call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import torch

from services.engine.backends.cuda.adapters import Integers
from services.engine.backends.cuda.bits import AttentionBits, fingerprint, settle_attention
from services.engine.backends.cuda.inputs import NO_TILES, InputLayout, Inputs, as_inputs, send
from services.engine.backends.cuda.layers import PARTIAL_SPLITS, CudaLayers, CudaSetup
from services.engine.backends.cuda.plan import Planner, Tiles
from services.engine.batch import buffers
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache
from services.engine.parallel.decoder import AllReduce, RankDecoder
from services.engine.parallel.layout import Layout

ONE_PROCESS = Layout()
# a batch runs in the next larger graph; padding costs what so few rows cost beside reading all weights
SIZES = (1, 2, 4, 8, *range(16, 128, 16), *range(128, 257, 32))

Run = Callable[[Inputs, torch.Tensor], None]  # launches an iteration that writes its logits [sampled, vocab] there


class CudaDecoder(RankDecoder):
    """Launches an iteration and returns; the host waits only for the tokens that are drawn from the logits.

    A token's logits depend on its request alone, bitwise: products and attention have several ways to the same bits,
    which are compared when this is made (see `bits`)."""

    def __init__(self, setup: CudaSetup, layout: Layout = ONE_PROCESS) -> None:
        super().__init__(setup.spec, layout, setup.device)
        self.backend = "triton"
        self.reads_past_end = False
        self.weight_dtype, self.cache_dtype = setup.dtype, setup.cache_dtype or setup.dtype
        self.kernels = CudaLayers(setup, self._part, layout)
        self.adapters = self._adapters = self.kernels.adapters
        self.weight_bytes = self.kernels.weight_bytes
        multiprocessors = self.kernels.multiprocessors
        self.planners = [
            Planner(of, setup.tiles(of.head_dim), multiprocessors, PARTIAL_SPLITS * of.queries_per_kv)
            for of in self.kernels.attentions
        ]
        self.graphs: Graphs | None = None  # None: every iteration is launched kernel by kernel
        self._longest = setup.max_model_len
        self.as_stored: Mapping[str, bool] = self.kernels.as_stored
        self.memory = self.kernels.memory
        if setup.device.type == "cuda":
            self._attention = [
                AttentionBits(of.attention, of.tiles, setup.dtype, multiprocessors, setup.device, self.cache_dtype)
                for of in self.planners
            ]
            self.backend += f" {fingerprint(self.kernels.settle(), *self._settle_attention())}"

    def bind(self, cache: KVCache) -> None:
        """See Decoder. On a GPU this also loads the kernels, which a decoder that was unpickled has not done, and one
        process captures graphs. Nothing is written to the cache."""
        if self.graphs:  # they know another cache
            self.graphs = None
            torch.cuda.empty_cache()  # while a graph is captured, no memory is given back
        self.kernels.bind(cache)
        if self._device.type == "cuda":
            self.kernels.load()
            self._settle_attention()
        if self._device.type == "cuda" and self._layout.size == 1:
            longest_table = -(-self._longest // cache.block_size)
            kinds = (False, True) if self._adapters else (False,)
            run, vocab = self._run_increments, self._spec.vocab
            self.graphs = Graphs(run, vocab, longest_table, self.planners, kinds, self._device)

    def _settle_attention(self) -> list[bytes]:
        return [settle_attention(*both) for both in zip(self._attention, self.planners, strict=True)]

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """See Decoder; float32."""
        if self.graphs and self.graphs.fit(batch):
            self._last = None
            items, _ = self._plan(batch)
            return self.graphs(batch, items, self._tiles(batch))
        return super().forward(batch)

    def begin(self, batch: FlatBatch) -> CudaForwardPass:
        items, tiles = self._plan(batch)
        return CudaForwardPass(self.kernels, send(batch, items, self._device, self._tiles(batch)), tiles)

    def _tiles(self, batch: FlatBatch) -> Integers:
        """[tiles, ITEM]: the tiles of the tokens that have adapters, see Adapted."""
        return self._adapters.items(batch.adapted) if self._adapters else NO_TILES

    def _plan(self, batch: FlatBatch) -> tuple[list[Numbers], list[Tiles]]:
        """The items of work of each kind of attention, and their tiles."""
        plans = [planner(batch) for planner in self.planners]
        return [items for items, _ in plans], [tiles for _, tiles in plans]

    def _run_increments(self, inputs: Inputs, logits: torch.Tensor) -> None:
        """A whole iteration of increments, for a graph."""
        x = self.kernels.embed(inputs)
        change = self.kernels.run(inputs, [planner.increments for planner in self.planners], x, None)
        self.kernels.logits(inputs.ends, x, change, logits)


class CudaForwardPass:
    """See ForwardPass."""

    def __init__(self, kernels: CudaLayers, inputs: Inputs, tiles: Sequence[Tiles]) -> None:
        self._kernels, self._inputs, self._tiles = kernels, inputs, tiles

    def embed(self) -> torch.Tensor:
        return self._kernels.embed(self._inputs)

    def run(self, x: torch.Tensor, all_reduce: AllReduce | None) -> torch.Tensor | None:
        return self._kernels.run(self._inputs, self._tiles, x, all_reduce)

    def logits(self, x: torch.Tensor, change: torch.Tensor | None, tokens: Numbers | None) -> torch.Tensor:
        """See ForwardPass. The host waits only if `tokens` are given."""
        rows = self._inputs.ends if tokens is None else torch.from_numpy(tokens).to(x.device)
        return self._kernels.logits(rows, x, change)


class Graphs:
    """The graphs are captured when this is made. No length is part of a graph: attention reads its work from memory.

    Graphs share memory, their inputs and logits too: all work is on one stream, so what the next iteration writes
    there comes after all that reads it.
    """

    def __init__(
        self,
        run: Run,
        vocab: int,
        longest_table: int,
        planners: Sequence[Planner],
        kinds: Sequence[bool],
        device: torch.device,
    ) -> None:
        """`planners`: of each kind of attention. `kinds`: without adapters, and with them if they are served: graphs of
        the first kind have no kernels for them."""
        self._layouts = [
            InputLayout(size, size, tuple(one.most_items(size) for one in planners), size * longest_table, kind * size)
            for kind in kinds
            for size in SIZES
        ]
        room = buffers.pack(self._layouts[-1].empty(), pinned=False)
        self._packed = room.to(device)
        self._logits = torch.empty(SIZES[-1], vocab, dtype=torch.float32, device=device)
        self._inputs = [as_inputs(buffers.unpack(self._packed, layout.empty())) for layout in self._layouts]
        pool = torch.cuda.graph_pool_handle()
        places = reversed(range(len(self._layouts)))  # the largest has all memory
        self._graphs = [self._capture(run, place, pool) for place in places][::-1]

    def fit(self, batch: FlatBatch) -> bool:
        """Whether all requests have one token, and the largest graph has room for them. A graph leaves the logits of
        `ends` only, so nothing to score prompts by."""
        return bool(len(batch.input_ids) == batch.num_requests <= SIZES[-1]) and not batch.scored_requests

    def __call__(self, batch: FlatBatch, items: Sequence[Numbers], tiles: Integers) -> torch.Tensor:
        """Logits [sampled, vocab]."""
        place = bisect_left(SIZES, batch.num_requests) + bool(batch.adapted) * len(SIZES)
        packed = buffers.pack(self._layouts[place].arrays(batch, items, tiles), pinned=True)
        self._packed[: len(packed)].copy_(packed, non_blocking=True)
        if batch.drawn:
            batch.drawn.put(self._inputs[place].ids)
        self._graphs[place].replay()
        return self._logits[: len(batch.ends)]

    def _capture(self, run: Run, place: int, pool: torch.cuda._POOL_HANDLE) -> torch.cuda.CUDAGraph:
        """The graph of an iteration that computes its tokens and keeps nothing of them."""
        layout, inputs = self._layouts[place], self._inputs[place]
        logits = self._logits[: layout.ends]
        packed = buffers.pack(layout.empty(), pinned=False)
        self._packed[: len(packed)].copy_(packed)
        with torch.inference_mode():
            run(inputs, logits)  # compiles kernels, and allocates what libraries allocate at their first call
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                run(inputs, logits)
        return graph
