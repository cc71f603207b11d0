"""LoRA adapters in a GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from services.engine.adapters import Adapter, LowRankProduct
from services.engine.backends.cuda.kernels.low_rank import ITEM, PRODUCT, RANKS, ROWS
from services.engine.batch import buffers
from services.engine.batch.flat_batch import AdaptedTokens

Integers = np.ndarray[Any, np.dtype[np.int64]]

QKV, OUTPUT, UP, DOWN = range(4)  # a layer's products, in their order in the tables
JOINED = (3, 1, 2, 1)  # linear layers of each, at most


@dataclass(frozen=True, slots=True)
class DeviceAdapter:
    """An adapter on the device. `table` [products, PRODUCT], int64, has the addresses of what `numbers` keeps."""

    table: torch.Tensor
    numbers: list[torch.Tensor]


class CudaAdapters:
    """See AdapterSlots. Memory that an adapter leaves is used only by work that is launched later."""

    def __init__(self, most_rank: int, device: torch.device) -> None:
        """`most_rank`: of an adapter's linear layers."""
        self.widths = [-(-joined * most_rank // RANKS) * RANKS for joined in JOINED]
        self._device = device
        self._kept: dict[str, DeviceAdapter] = {}

    def put(self, digest: str, adapter: Adapter) -> None:
        of_layers = (each for layer in adapter.layers for each in (layer.qkv, layer.output, layer.up, layer.down))
        products = list(of_layers)
        arrays = [each.numpy() for product in products if product for each in _filled(product)]
        numbers = buffers.send(arrays, self._device)
        table = np.zeros((len(products), PRODUCT), np.int64)
        filled = iter(numbers)
        for place, product in enumerate(products):
            if product:
                a, b = next(filled), next(filled)
                assert len(a) <= self.widths[place % len(JOINED)], f"rank {len(a)} of product {place}"
                table[place] = a.data_ptr(), b.data_ptr(), len(a)
        (there,) = buffers.send([table], self._device)
        self._kept[digest] = DeviceAdapter(there, numbers)

    def drop(self, digest: str) -> None:
        del self._kept[digest]

    def items(self, adapted: Sequence[AdaptedTokens]) -> Integers:
        """[tiles, ITEM], see Adapted."""
        found = [
            (first, min(first + ROWS, tokens.end), self._kept[tokens.adapter].table.data_ptr())
            for tokens in adapted
            for first in range(tokens.first, tokens.end, ROWS)
        ]
        return np.array(found, np.int64).reshape(-1, ITEM)


def _filled(product: LowRankProduct) -> tuple[torch.Tensor, torch.Tensor]:
    """`a` [rank, inputs] with the scales, and `b` [rank, outputs], with ranks of zeros up to a multiple of RANKS."""
    more = -len(product.a) % RANKS
    return pad(product.a * product.scales[:, None], (0, 0, 0, more)), pad(product.b.t(), (0, 0, 0, more)).contiguous()
