"""Packs LoRA adapters as low_rank.h describes them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array
from dataclasses import dataclass

import torch

from services.engine.adapters import Adapter, LowRankLayer, LowRankProduct
from services.engine.backends.cpu.packed import address
from services.engine.backends.cpu.structs import AdaptedRows, LowRank
from services.engine.batch.flat_batch import AdaptedTokens


@dataclass(frozen=True, slots=True)
class PackedLowRank:
    """What an adapter adds to one product."""

    a: torch.Tensor  # [strips, inputs, lanes], float32
    scales: torch.Tensor  # [strips * lanes], float32
    b: torch.Tensor  # [ranks of each half of a panel, lanes], float32
    halves: torch.Tensor  # [halves, 3], int32

    def struct(self) -> LowRank:
        """Points at the tensors of this, which must outlive it."""
        return LowRank(*(address(each) for each in (self.a, self.scales, self.b, self.halves)), len(self.a))


class CpuAdapters:
    """See AdapterSlots."""

    def __init__(self, lanes: int, gated: bool) -> None:
        """See PackedAdapter."""
        self._lanes, self._gated = lanes, gated
        self._packed: dict[str, PackedAdapter] = {}

    def put(self, digest: str, adapter: Adapter) -> None:
        self._packed[digest] = PackedAdapter(adapter.layers, self._lanes, self._gated)

    def drop(self, digest: str) -> None:
        del self._packed[digest]

    def rows(self, adapted: Sequence[AdaptedTokens]) -> tuple[Array[AdaptedRows], int]:
        """The tokens of a batch with adapters, and the most strips of any product. Valid until an adapter goes."""
        each = [(tokens, self._packed[tokens.adapter]) for tokens in adapted]
        rows = (AdaptedRows * len(each))(*(AdaptedRows(t.first, t.end - t.first, own.structs) for t, own in each))
        return rows, max((own.strips for _, own in each), default=0)


class PackedAdapter:
    """An adapter's products in a rank's layers."""

    def __init__(self, layers: Sequence[LowRankLayer], lanes: int, gated: bool) -> None:
        """`gated`: half of the outputs of each `up` are gates; see `Packer.matrix`."""
        self._packed = [
            pack_low_rank(product, lanes, gated and product is layer.up) if product else None
            for layer in layers
            for product in (layer.qkv, layer.output, layer.up, layer.down)
        ]
        self.strips = max((len(each.a) for each in self._packed if each), default=0)
        self.structs: Array[LowRank] = (LowRank * len(self._packed))(
            *(each.struct() if each else LowRank() for each in self._packed)
        )


def pack_low_rank(product: LowRankProduct, lanes: int, gated: bool) -> PackedLowRank:
    """A panel has 2 * `lanes` outputs; a half of it skips ranks at both ends for which `b` has zeros."""
    rank, inputs = product.a.shape
    strips = -(-rank // lanes)
    a = product.a.new_zeros(strips * lanes, inputs)
    a[:rank] = product.a
    scales = product.scales.new_zeros(strips * lanes)
    scales[:rank] = product.scales
    parts = product.b.view(2, -1, rank) if gated else product.b[None]
    step = lanes if gated else 2 * lanes
    panels = -(-parts.shape[1] // step)
    b = product.b.new_zeros(len(parts), panels * step, rank)
    b[:, : parts.shape[1]] = parts
    b = b.view(len(parts), panels, step, rank).transpose(0, 1).reshape(2 * panels, lanes, rank)
    used = (b != 0).any(1).int()
    firsts, ends = used.argmax(1), rank - used.flip(1).argmax(1)
    ends = torch.where(used.any(1), ends, firsts)
    ranks = torch.arange(rank)
    kept = (firsts[:, None] <= ranks) & (ranks < ends[:, None])
    begins = (ends - firsts).cumsum(0) - (ends - firsts)
    return PackedLowRank(
        a.view(strips, lanes, inputs).transpose(1, 2).contiguous(),
        scales,
        b.transpose(1, 2)[kept].contiguous(),
        torch.stack([firsts, ends, begins], 1).int().contiguous(),
    )
