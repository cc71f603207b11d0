"""Inputs: all that the device needs of an iteration, sent as one copy of integers."""

from __future__ import annotations

from collections.abc import Sequence
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
    of each kind of attention."""

    ids: torch.Tensor  # [tokens]
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor  # [sampled]
    work: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Room for so many tokens, sampling requests, items of work of each kind of attention, and block ids in tables."""

    tokens: int
    ends: int
    items: tuple[int, ...]
    tables: int

    @classmethod
    def of(cls, batch: FlatBatch, items: Sequence[Numbers]) -> InputLayout:
        """The smallest one for this batch."""
        return cls(len(batch.input_ids), len(batch.ends), tuple(map(len, items)), len(batch.tables))

    def arrays(self, batch: FlatBatch, items: Sequence[Numbers]) -> list[Numbers]:
        """The batch, in the order of `Inputs`. Tokens beyond the batch have slot -1 and no work, so they are not
        kept."""
        return [
            _padded(batch.input_ids, self.tokens),
            _padded(batch.positions(), self.tokens),
            _padded(batch.slots(), self.tokens, -1),
            _padded(batch.ends, self.ends),
            *(part for kind, room in zip(items, self.items, strict=True) for part in _work(kind, room)),
            batch.tables,  # last, because it need not fill its room
        ]

    def empty(self) -> list[Numbers]:
        """The arrays of a batch that keeps nothing and has no work."""
        arrays: list[Numbers] = [np.zeros(size, np.int32) for size in (self.tokens,) * 3 + (self.ends,)]
        arrays[2][:] = -1
        none = np.zeros((0, FIELDS), np.int32)
        return [*arrays, *(part for room in self.items for part in _work(none, room)), np.zeros(self.tables, np.int32)]


def _work(items: Numbers, room: int) -> tuple[Numbers, Numbers]:
    """The number of items, and the items in room for more."""
    return np.array([len(items)], np.int32), _padded(items.reshape(-1), room * FIELDS).reshape(-1, FIELDS)


def _padded(numbers: Numbers, size: int, filler: int = 0) -> Numbers:
    if len(numbers) == size:
        return numbers
    padded = np.full(size, filler, np.int32)
    padded[: len(numbers)] = numbers
    return padded


def as_inputs(tensors: list[torch.Tensor]) -> Inputs:
    """Inputs from the tensors of `InputLayout.arrays`."""
    ids, positions, slots, ends, *work, tables = tensors
    works = (Work(count, items, tables) for count, items in zip(work[::2], work[1::2], strict=True))
    return Inputs(ids, positions, slots, ends, tuple(works))


def send(batch: FlatBatch, items: Sequence[Numbers], device: torch.device) -> Inputs:
    """The batch on the device, in new memory. The host does not wait."""
    inputs = as_inputs(buffers.send(InputLayout.of(batch, items).arrays(batch, items), device))
    if batch.drawn:
        batch.drawn.put(inputs.ids)
    return inputs
