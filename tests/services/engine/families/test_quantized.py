"""QuantizedWeight: its parts and stacks are the same numbers."""

from __future__ import annotations

import pytest
import torch

from services.engine.families.quantized import QuantizedWeight, stack


def draw(outputs: int, inputs: int, bits: int, group: int, seed: int = 1) -> QuantizedWeight:
    drawn = torch.Generator().manual_seed(seed)
    codes = torch.randint(1 << bits, (outputs, inputs), generator=drawn, dtype=torch.uint8)
    scales, offsets = (torch.randn(outputs, inputs // group, generator=drawn) for _ in range(2))
    return QuantizedWeight(codes, scales, offsets, bits, group)


@pytest.mark.parametrize("columns", [None, (32, 96), (0, 16), (48, 80)])
def test_a_part_has_the_numbers_of_the_whole(columns: tuple[int, int] | None) -> None:
    weight = draw(12, 128, 4, 32)
    part = weight.part((3, 9), columns)
    assert torch.equal(part.dequantize(), weight.dequantize()[3:9, slice(*columns) if columns else slice(None)])


def test_a_stack_has_the_numbers_of_all() -> None:
    weights = [draw(4, 64, 4, 32), draw(8, 64, 6, 16, seed=2)]
    stacked = stack(weights)
    assert (stacked.bits, stacked.group) == (6, 16)
    assert torch.equal(stacked.dequantize(), torch.cat([each.dequantize() for each in weights]))


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_centring_changes_no_number(bits: int) -> None:
    free = draw(4, 64, bits, 16)
    about_a_middle = QuantizedWeight(free.codes, free.scales, free.scales * -(1 << bits - 1), bits, 16)
    assert not free.centred().is_centred
    assert about_a_middle.centred().is_centred
    for weight in (free, about_a_middle):
        assert torch.equal(weight.centred().dequantize(torch.float32), weight.dequantize(torch.float32))
