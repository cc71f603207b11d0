"""KVCache: the keys and values of all requests, in blocks that the scheduler places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a token."""

    heads: int  # key and value heads
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        return self.heads * (self.key_dim + self.value_dim)


class KVCache:
    """Per layer a key and a value tensor [(num_blocks + 1) * block_size, heads, dim], indexed by slot.

    The block after the last one stays zero: it pads block tables, so that no request ever reads another's values,
    not even behind a mask (0 * NaN is NaN).
    """

    def __init__(
        self, layers: list[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        assert num_blocks > 0, f"{num_blocks} KV blocks"
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.block_size = block_size
        slots = (num_blocks + 1) * block_size
        self.keys = [_zeros((slots, s.heads, s.key_dim), dtype, device) for s in layers]
        self.values = [_zeros((slots, s.heads, s.value_dim), dtype, device) for s in layers]

    @property
    def padding_block(self) -> int:
        return self.num_blocks

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys [tokens, heads, key_dim] and values [tokens, heads, value_dim] at `slots` [tokens]."""
        self.keys[layer].index_copy_(0, slots, keys.to(self.dtype))
        self.values[layer].index_copy_(0, slots, values.to(self.dtype))

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [requests, blocks * block_size, heads, dim] of block tables [requests, blocks]."""
        return self._gather(self.keys[layer], blocks), self._gather(self.values[layer], blocks)

    def erase(self, blocks: list[int]) -> None:
        """Zero these blocks: what a request with infinite or undefined values leaves must reach nobody."""
        index = torch.tensor(blocks, dtype=torch.long, device=self.keys[0].device)
        for store in (*self.keys, *self.values):
            store.view(self.num_blocks + 1, -1).index_fill_(0, index, 0)

    def _gather(self, store: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        rows = store.view(self.num_blocks + 1, -1).index_select(0, blocks.flatten())
        return rows.view(blocks.shape[0], -1, *store.shape[1:])


def block_bytes(layers: list[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers: block_size * sum of heads * (key_dim + value_dim) * bytes of a number."""
    return block_size * sum(s.numbers for s in layers) * int(dtype.itemsize)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        bits = {4: np.float32, 2: np.int16}[dtype.itemsize]
        return torch.from_numpy(np.zeros(shape, bits)).view(dtype)  # pages come when they are first written
    return torch.zeros(shape, dtype=dtype, device=device)
