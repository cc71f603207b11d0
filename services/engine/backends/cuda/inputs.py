"""Inputs: all that the device needs of an iteration, sent as one copy of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.engine.backends.cuda.adapters import Integers
from services.engine.backends.cuda.kernels.attention import Work
from services.engine.backends.cuda.kernels.low_rank import ITEM, Adapted
from services.engine.backends.cuda.plan import FIELDS
from services.engine.batch import buffers
from services.engine.batch.flat_batch import FlatBatch, Numbers

NO_TILES: Integers = np.zeros((0, ITEM), np.int64)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Int32, on the device: id, position and slot of each token; the last tokens of the requests that sample; the work
    of each kind of attention, and of adapters."""

    ids: torch.Tensor  # [tokens]
    positions: torch.Tensor
    slots: torch.Tensor
    ends: torch.Tensor  # [sampled]
    work: tuple[Work, ...]
    adapted: Adapted | None  # None: no token has an adapter


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Room for so many tokens, sampling requests, items of work of each kind of attention, block ids in tables, and
    tiles of tokens with adapters."""

    tokens: int
    ends: int
    items: tuple[int, ...]
    tables: int
    adapted: int = 0

    @classmethod
    def of(cls, batch: FlatBatch, items: Sequence[Numbers], adapted: Integers = NO_TILES) -> InputLayout:
        """The smallest one for this batch."""
        return cls(len(batch.input_ids), len(batch.ends), tuple(map(len, items)), len(batch.tables), len(adapted))

    def arrays(
        self, batch: FlatBatch, items: Sequence[Numbers], adapted: Integers = NO_TILES
    ) -> list[Numbers | Integers]:
        """The batch, in the order of `Inputs`. Tokens beyond the batch have slot -1 and no work, so they are not
        kept."""
        return [
            _padded(batch.input_ids, self.tokens),
            _padded(batch.positions(), self.tokens),
            _padded(batch.slots(), self.tokens, -1),
            _padded(batch.ends, self.ends),
            *self._adapted(adapted),
            *(part for kind, room in zip(items, self.items, strict=True) for part in _work(kind, room)),
            batch.tables,  # last, because it need not fill its room
        ]

    def _adapted(self, tiles: Integers) -> tuple[Numbers, Integers]:
        """The number of tiles, and the tiles in room for more."""
        room = np.zeros((self.adapted, ITEM), np.int64)
        room[: len(tiles)] = tiles
        return np.array([len(tiles)], np.int32), room

    def empty(self) -> list[Numbers | Integers]:
        """The arrays of a batch that keeps nothing and has no work."""
        arrays: list[Numbers | Integers] = [np.zeros(size, np.int32) for size in (self.tokens,) * 3 + (self.ends,)]
        arrays[2][:] = -1
        none = np.zeros((0, FIELDS), np.int32)
        arrays += self._adapted(NO_TILES)
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


def as_inputs(tensors: list[torch.Tensor], plain: int = 0) -> Inputs:
    """Inputs from the tensors of `InputLayout.arrays`. `plain`: see Adapted."""
    ids, positions, slots, ends, count, tiles, *work, tables = tensors
    works = (Work(count, items, tables) for count, items in zip(work[::2], work[1::2], strict=True))
    return Inputs(ids, positions, slots, ends, tuple(works), Adapted(count, tiles, plain) if len(tiles) else None)


def send(batch: FlatBatch, items: Sequence[Numbers], device: torch.device, adapted: Integers = NO_TILES) -> Inputs:
    """The batch on the device, in new memory. The host does not wait."""
    arrays = InputLayout.of(batch, items, adapted).arrays(batch, items, adapted)
    inputs = as_inputs(buffers.send(arrays, device), batch.adapted[0].first if batch.adapted else 0)
    if batch.drawn:
        batch.drawn.put(inputs.ids)
    return inputs
