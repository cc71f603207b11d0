"""Graphs: increment iterations as CUDA graphs, one for each of some batch sizes, launched by a single call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from services.engine.cuda.inputs import Inputs, Layout
from services.engine.flat_batch import FlatBatch, Numbers

# a batch runs in the next larger one; its padding costs what so few rows cost beside reading all weights
SIZES = (1, 2, 4, 8, *range(16, 128, 16), *range(128, 257, 32))

Run = Callable[[Inputs, torch.Tensor], None]  # launches an iteration that puts its logits [sampling, vocab] there


class Graphs:
    """Captured when made. No length is part of a graph: attention reads from memory what its work is.

    They share their memory, so what one returns is there until the next runs.
    """

    def __init__(self, run: Run, vocab: int, longest_table: int, most_items: int, device: torch.device) -> None:
        """An iteration has at most `most_items` items of work more than requests."""
        self._layouts = [Layout(size, size, size + most_items) for size in SIZES]
        room = self._layouts[-1].offsets()[-1] + SIZES[-1] * longest_table
        self._packed = torch.zeros(room, dtype=torch.int32, device=device)
        self._logits = torch.empty(SIZES[-1], vocab, dtype=torch.float32, device=device)
        pool = torch.cuda.graph_pool_handle()
        graphs = [self._capture(run, layout, pool) for layout in reversed(self._layouts)]  # the largest has all memory
        self._graphs = graphs[::-1]

    def fit(self, batch: FlatBatch) -> bool:
        """Whether all are increments of one token, and no more than the largest graph has. What is left of a graph are
        the logits of `ends`: nothing to score prompts by."""
        return bool(len(batch.input_ids) == batch.num_requests <= SIZES[-1]) and not batch.scoring

    def __call__(self, batch: FlatBatch, items: Numbers) -> torch.Tensor:
        """Logits [sampling, vocab]."""
        place = bisect_left(SIZES, batch.num_requests)
        packed = self._layouts[place].pack(batch, items, pinned=True)
        self._packed[: len(packed)].copy_(packed, non_blocking=True)
        self._graphs[place].replay()
        return self._logits[: len(batch.ends)]

    def _capture(self, run: Run, layout: Layout, pool: torch.cuda._POOL_HANDLE) -> torch.cuda.CUDAGraph:
        """Of an iteration that computes its tokens and keeps nothing of them."""
        logits = self._logits[: layout.ends]
        inputs = layout.views(self._packed)
        self._packed.zero_()
        inputs.slots.fill_(-1)
        with torch.inference_mode():
            run(inputs, logits)  # compiles kernels and makes what libraries make when they are first called
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                run(inputs, logits)
        return graph
