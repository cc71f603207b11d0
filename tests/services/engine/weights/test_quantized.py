"""QuantizedWeight: its parts and stacks are the same numbers."""

from __future__ import annotations

import pytest
import torch

from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values, quantize, stack


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


def test_a_stack_of_other_values_is_numbers() -> None:
    weights = [draw(4, 64, 4, 32), quantize(torch.randn(4, 64), GroupFormat(4, 32, Values.E2M1))]
    stacked = stack(weights)
    assert isinstance(stacked, torch.Tensor)
    assert torch.equal(stacked, torch.cat([each.dequantize() for each in weights]))


@pytest.mark.parametrize(
    ("form", "error"),
    [
        (GroupFormat(4, 32), 1 / 15),
        (GroupFormat(8, 64), 1 / 255),
        (GroupFormat(8, 32, Values.E4M3), 1 / 16),
        (GroupFormat(4, 32, Values.E2M1), 1 / 6),
        (GroupFormat(4, 16, Values.IQ4_NL), 0.2),
    ],
)
def test_quantized_numbers_are_near_to_the_original(form: GroupFormat, error: float) -> None:
    """The error is a share of a group's largest number."""
    numbers = torch.randn(6, 128, generator=torch.Generator().manual_seed(3))
    weight = quantize(numbers, form)
    assert (weight.bits, weight.group, weight.values) == form
    groups = (numbers - weight.dequantize(torch.float32)).view(6, -1, form.size).abs().amax(-1)
    assert (groups <= error * numbers.view(6, -1, form.size).abs().amax(-1) * 1.2).all()
    assert groups.max() > 0
    part = weight.part((1, 4), (32, 96))
    assert torch.equal(part.dequantize(), weight.dequantize()[1:4, 32:96])
    assert torch.equal(weight.take(torch.tensor([3, 1])).dequantize(), weight.dequantize()[[3, 1]])


def test_codes_stand_for_the_numbers_of_their_formats() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(Values.E4M3.numbers(codes)[:9] * 512, torch.arange(9.0))
    assert Values.E4M3.numbers(codes)[[0x7E, 0xFE]].tolist() == [448.0, -448.0]
    for values in (Values.E2M1, Values.IQ4_NL):
        assert values.numbers(codes[:16]).tolist() == list(values.book)
        assert torch.equal(values.numbers(values.codes(values.numbers(codes[:16]))), values.numbers(codes[:16]))


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_centring_changes_no_number(bits: int) -> None:
    free = draw(4, 64, bits, 16)
    about_a_middle = QuantizedWeight(free.codes, free.scales, free.scales * -(1 << bits - 1), bits, 16)
    assert not free.centred().is_centred
    assert about_a_middle.centred().is_centred
    for weight in (free, about_a_middle):
        assert torch.equal(weight.centred().dequantize(torch.float32), weight.dequantize(torch.float32))
