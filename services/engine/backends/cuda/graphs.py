"""Graphs: iterations of increments as CUDA graphs, one for each of some batch sizes, launched by a single call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from services.engine.backends.cuda.inputs import Inputs, Layout, as_inputs
from services.engine.batch import buffers
from services.engine.batch.flat_batch import FlatBatch, Numbers

# a batch runs in the next larger graph; padding costs what so few rows cost beside reading all weights
SIZES = (1, 2, 4, 8, *range(16, 128, 16), *range(128, 257, 32))

Run = Callable[[Inputs, torch.Tensor], None]  # launches an iteration that writes its logits [sampled, vocab] there


class Graphs:
    """The graphs are captured when this is made. No length is part of a graph: attention reads its work from memory.

    Graphs share memory, so the logits of one are valid until the next runs.
    """

    def __init__(self, run: Run, vocab: int, longest_table: int, most_items: int, device: torch.device) -> None:
        """An iteration has at most `most_items` more items of work than requests."""
        self._layouts = [Layout(size, size, size + most_items, size * longest_table) for size in SIZES]
        room = buffers.pack(self._layouts[-1].empty(), pinned=False)
        self._packed = room.to(device)
        self._logits = torch.empty(SIZES[-1], vocab, dtype=torch.float32, device=device)
        pool = torch.cuda.graph_pool_handle()
        graphs = [self._capture(run, layout, pool) for layout in reversed(self._layouts)]  # the largest has all memory
        self._graphs = graphs[::-1]

    def fit(self, batch: FlatBatch) -> bool:
        """Whether all requests have one token, and the largest graph has room for them. A graph leaves the logits of
        `ends` only, so nothing to score prompts by."""
        return bool(len(batch.input_ids) == batch.num_requests <= SIZES[-1]) and not batch.scored_requests

    def __call__(self, batch: FlatBatch, items: Numbers) -> torch.Tensor:
        """Logits [sampled, vocab]."""
        place = bisect_left(SIZES, batch.num_requests)
        packed = buffers.pack(self._layouts[place].arrays(batch, items), pinned=True)
        self._packed[: len(packed)].copy_(packed, non_blocking=True)
        self._graphs[place].replay()
        return self._logits[: len(batch.ends)]

    def _capture(self, run: Run, layout: Layout, pool: torch.cuda._POOL_HANDLE) -> torch.cuda.CUDAGraph:
        """The graph of an iteration that computes its tokens and keeps nothing of them."""
        logits = self._logits[: layout.ends]
        empty = layout.empty()
        packed = buffers.pack(empty, pinned=False)
        self._packed[: len(packed)].copy_(packed)
        inputs = as_inputs(buffers.unpack(self._packed, empty))
        with torch.inference_mode():
            run(inputs, logits)  # compiles kernels, and allocates what libraries allocate at their first call
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                run(inputs, logits)
        return graph
