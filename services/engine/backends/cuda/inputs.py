"""Inputs: all that the device needs of an iteration, sent as one copy of integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from services.engine.backends.cuda.kernels.attention import Work
from services.engine.backends.cuda.plan import FIELDS
from services.engine.batch import buffers
from services.engine.batch.flat_batch import FlatBatch, Numbers


@dataclass(frozen=True, slots=True)
class Inputs:
    """Int32, on the device: id, position and slot of each token; the last tokens of the requests that sample; the work
    of attention."""

    ids: torch.Tensor  # [tokens]
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor  # [sampled]
    work: Work


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Room for so many tokens, sampling requests, items of work and block ids in tables."""

    tokens: int
    ends: int
    items: int
    tables: int

    @classmethod
    def of(cls, batch: FlatBatch, items: Numbers) -> InputLayout:
        """The smallest one for this batch."""
        return cls(len(batch.input_ids), len(batch.ends), len(items), len(batch.tables))

    def arrays(self, batch: FlatBatch, items: Numbers) -> list[Numbers]:
        """The batch, in the order of `Inputs`. Tokens beyond the batch have slot -1 and no work, so they are not
        kept."""
        return [
            np.array([len(items)], np.int32),
            _padded(batch.input_ids, self.tokens),
            _padded(batch.positions(), self.tokens),
            _padded(batch.slots(), self.tokens, -1),
            _padded(batch.ends, self.ends),
            _padded(items.reshape(-1), self.items * FIELDS).reshape(-1, FIELDS),
            batch.tables,  # last, because it need not fill its room
        ]

    def empty(self) -> list[Numbers]:
        """The arrays of a batch that keeps nothing and has no work."""
        sizes = (1, self.tokens, self.tokens, self.tokens, self.ends)
        arrays: list[Numbers] = [np.zeros(size, np.int32) for size in sizes]
        arrays[3][:] = -1
        return [*arrays, np.zeros((self.items, FIELDS), np.int32), np.zeros(self.tables, np.int32)]


def _padded(numbers: Numbers, size: int, filler: int = 0) -> Numbers:
    if len(numbers) == size:
        return numbers
    padded = np.full(size, filler, np.int32)
    padded[: len(numbers)] = numbers
    return padded


def as_inputs(tensors: list[torch.Tensor]) -> Inputs:
    """Inputs from the tensors of `InputLayout.arrays`."""
    count, ids, positions, slots, ends, items, tables = tensors
    return Inputs(ids, positions, slots, ends, Work(count, items, tables))


def send(batch: FlatBatch, items: Numbers, device: torch.device) -> Inputs:
    """The batch on the device, in new memory. The host does not wait."""
    inputs = as_inputs(buffers.send(InputLayout.of(batch, items).arrays(batch, items), device))
    if batch.drawn:
        batch.drawn.put(inputs.ids)
    return inputs
