"""A batch that is packed for a graph of a larger one is the batch, followed by what keeps nothing and has no work."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from services.engine.backends.cuda.inputs import InputLayout, as_inputs, send
from services.engine.backends.cuda.plan import Tiles, plan
from services.engine.batch import buffers
from services.engine.batch.flat_batch import pack_batch
from services.engine.batch.request_state import RequestState
from services.engine.spec import AttentionSpec
from services.requests import SamplingParams


def test_padding_keeps_nothing() -> None:
    states = [
        RequestState(str(i), [7] * (i + 2), i + 1, SamplingParams(3), i + 1, array("i", [2 * i, 2 * i + 1]))
        for i in range(3)
    ]
    batch = pack_batch([(state, 1) for state in states], 4)
    attention = AttentionSpec(2, 1, 16, 0.25)
    items = [plan(batch, replace(attention, window=window), Tiles(16, 16, 32), 4, 64) for window in (0, 2)]
    exact = send(batch, items, torch.device("cpu"))
    room = InputLayout(tokens=8, ends=8, items=(20, 21), tables=40)
    memory = torch.empty(len(buffers.pack(room.empty(), pinned=False)), dtype=torch.uint8)
    packed = buffers.pack(room.arrays(batch, items), pinned=False)
    memory[: len(packed)] = packed
    padded = as_inputs(buffers.unpack(memory, room.empty()))
    for name in ("ids", "positions", "slots", "ends"):
        assert torch.equal(getattr(padded, name)[:3], getattr(exact, name))
    assert padded.slots[3:].tolist() == [-1] * 5
    for found, expected, own in zip(padded.work, exact.work, items, strict=True):
        assert found.count.tolist() == expected.count.tolist() == [len(own)]
        assert torch.equal(found.items[: len(own)], expected.items)
        assert np.array_equal(found.tables[: len(batch.tables)].numpy(), batch.tables)
