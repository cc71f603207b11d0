"""KVCache: the keys and values of all requests, in blocks that the scheduler places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.engine.batch.block_names import BYTES
from services.engine.batch.buffers import Allocate, zeros

CPU = torch.device("cpu")


def scale_numbers(dtype: torch.dtype) -> int:
    """How many numbers the scale of one head's key or value takes: with int8 it is a float32."""
    return 4 if dtype == torch.int8 else 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The size of what one layer keeps of a token."""

    heads: int  # key and value heads
    key_dim: int
    value_dim: int

    def bytes(self, dtype: torch.dtype) -> int:
        """Bytes that this layer keeps of a token, with keys and values in `dtype`."""
        return self.heads * (self.key_dim + self.value_dim + 2 * scale_numbers(dtype)) * int(dtype.itemsize)


@dataclass(frozen=True, slots=True)
class StateShape:
    """The size of a state that a layer keeps in place of what it would keep of each token. A block has one of each."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


class KVCache:
    """Per layer keys [all blocks, heads, dim, block_size] and values [all blocks, heads, block_size, dim].

    What one head reads of a block is contiguous and in the order in which attention reads it: a score is a sum over
    dimensions for many keys at once, an output is a sum over keys for many dimensions at once. A decoder may order the
    numbers within such a piece differently. With int8, `dim` is larger by the room for the scales. Of layers with a
    state, each block has the state after the last of its tokens that are computed: `states` [all blocks, *shape].

    The scheduler places `num_blocks` of them. The block after these stays zero: it pads block tables, so that no
    request reads another's values, not even behind a mask (0 * NaN is NaN). The last `num_reserved` are for the engine
    itself.
    """

    def __init__(
        self,
        layers: list[LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_reserved: int = 0,
        allocate: Allocate = zeros,
        states: Sequence[StateShape] = (),
    ) -> None:
        assert num_blocks > 0, f"{num_blocks} KV blocks"
        self.num_blocks = num_blocks
        self.dtype = dtype
        self.block_size = block_size
        self.device = device
        blocks = num_blocks + 1 + num_reserved
        self.reserved_blocks = list(range(num_blocks + 1, blocks))
        scale = scale_numbers(dtype)
        self.keys = [allocate((blocks, s.heads, s.key_dim + scale, block_size), dtype, device) for s in layers]
        self.record = allocate((blocks, BYTES), torch.uint8, CPU)  # of BlockRecord
        self.values = [allocate((blocks, s.heads, block_size, s.value_dim + scale), dtype, device) for s in layers]
        self.states = [allocate((blocks, *s.shape), s.dtype, device) for s in states]
        self.state_tokens = np.zeros(blocks if states else 0, np.int32)  # of its block, after which each state is

    @property
    def padding_block(self) -> int:
        return self.num_blocks

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put keys [tokens, heads, key_dim] and values [tokens, heads, value_dim] at `slots` [tokens]."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        self.keys[layer][blocks, :, :, offsets] = keys.to(self.dtype)
        self.values[layer][blocks, :, offsets] = values.to(self.dtype)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [requests, heads, blocks * block_size, dim] of block tables [requests, blocks]."""
        return _gather(self.keys[layer].transpose(2, 3), blocks), _gather(self.values[layer], blocks)

    @property
    def stores(self) -> list[torch.Tensor]:
        """All that blocks contain."""
        return [*self.keys, *self.values, *self.states]

    def begin_anew(self) -> None:
        """Note that all blocks contain zeros."""
        self.state_tokens[:] = 0
        self.record.zero_()

    def erase(self, blocks: list[int]) -> None:
        """Zero these blocks, so that no request reads the infinite or undefined values that a failed one left."""
        index = torch.tensor(blocks, dtype=torch.long, device=self.device)
        for store in (*self.keys, *self.values):
            store.index_fill_(0, index, 0)


def _gather(store: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = store.index_select(0, blocks.flatten()).unflatten(0, blocks.shape)
    return found.transpose(1, 2).flatten(2, 3)
