"""MappedGguf: the weights that a GgufIndex names, in files that are mapped into memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from services.models.gguf_index import Place, Source

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # of numbers


class MappedGguf:
    """Tensors share the mapped memory unless their rows are reordered. Writing to one changes no file."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Raises OtherWeights for a file that is absent, or not what it was."""
        for source in sources:
            source.check()
        self._files = [np.memmap(source.path, np.uint8, "c") for source in sources]

    def rows(self, place: Place, rows: tuple[int, int] | None = None) -> torch.Tensor:
        """A matrix, or these rows of it, in transformers' order: numbers, or blocks [rows, bytes] of its type."""
        data = self._files[place.file][place.offset : place.offset + place.rows * place.width]
        stored = torch.from_numpy(data.view(np.ndarray)).view(place.rows, place.width)
        chosen = slice(*rows or (None,))
        if place.pairs > 1:
            order = torch.arange(place.rows).view(-1, place.pairs, 2).transpose(1, 2).reshape(-1)
            stored = stored[order[chosen]]
        else:
            stored = stored[chosen]
        return stored.view(DTYPES[place.kind]) if place.kind in DTYPES else stored
