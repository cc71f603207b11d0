"""Inputs: all that the device is told of an iteration, in one array of integers and one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from services.engine.backends.cuda.kernels.attention import Work
from services.engine.backends.cuda.plan import FIELDS
from services.engine.batch.flat_batch import FlatBatch, Numbers

ALIGNMENT = 4  # numbers: 16 bytes, so that every part is as aligned as a tensor of its own


@dataclass(frozen=True, slots=True)
class Inputs:
    """Int32, on the device: id, position and slot of each token; last tokens of those who sample; attention's work."""

    ids: torch.Tensor  # [tokens]
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor  # [sampling]
    work: Work


@dataclass(frozen=True, slots=True)
class Layout:
    """Room for so many tokens, sampling requests and items of work. Block tables come last, as long as they are."""

    tokens: int
    ends: int
    items: int

    @classmethod
    def of(cls, batch: FlatBatch, items: Numbers) -> Layout:
        """No larger than it must be."""
        return cls(len(batch.input_ids), len(batch.ends), len(items))

    def offsets(self) -> list[int]:
        """Where count, ids, positions, slots, ends, items and tables begin."""
        sizes = (1, self.tokens, self.tokens, self.tokens, self.ends, self.items * FIELDS)
        return [0, *np.cumsum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]).tolist()]

    def views(self, packed: torch.Tensor) -> Inputs:
        """The parts of `packed`, which is on the device."""
        count, ids, positions, slots, ends, items, tables = self.offsets()
        return Inputs(
            ids=packed[ids : ids + self.tokens],
            positions=packed[positions : positions + self.tokens],
            slots=packed[slots : slots + self.tokens],
            ends=packed[ends : ends + self.ends],
            work=Work(
                packed[count : count + 1],
                packed[items : items + self.items * FIELDS].view(-1, FIELDS),
                packed[tables:],
            ),
        )

    def pack(self, batch: FlatBatch, items: Numbers, pinned: bool) -> torch.Tensor:
        """On the host. Tokens that there is room for but that are nobody's have no slot, and no work names them."""
        *starts, tables = self.offsets()
        packed = torch.empty(tables + len(batch.tables), dtype=torch.int32, pin_memory=pinned)
        numbers = packed.numpy()
        numbers[:tables] = 0
        numbers[starts[3] : starts[3] + self.tokens] = -1
        parts = (
            np.array([len(items)]),
            batch.input_ids,
            batch.positions(),
            batch.slots(),
            batch.ends,
            items.reshape(-1),
        )
        for start, part in zip(starts, parts, strict=True):
            numbers[start : start + len(part)] = part
        numbers[tables:] = batch.tables
        return packed


def send(batch: FlatBatch, items: Numbers, device: torch.device) -> Inputs:
    """In memory of their own. The host waits for nothing."""
    layout = Layout.of(batch, items)
    return layout.views(layout.pack(batch, items, device.type == "cuda").to(device, non_blocking=True))
