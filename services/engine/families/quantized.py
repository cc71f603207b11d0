"""QuantizedWeight: a product's weights as a checkpoint stores them: integers, with a scale for each group of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.engine.parallel.layout import RowRange


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Weights [outputs, inputs]: `scales[o, i // group] * codes[o, i] + offsets[o, i // group]`, in float32.

    GGUF's Q4_0, Q4_1, Q4_K, Q6_K and Q8_0, GPTQ, AWQ and the integer formats of compressed-tensors all have this form.
    """

    codes: torch.Tensor  # [outputs, inputs], uint8: 0 to 2^bits - 1
    scales: torch.Tensor  # [outputs, inputs / group], float32
    offsets: torch.Tensor  # [outputs, inputs / group], float32
    bits: int  # 4, 6 or 8
    group: int  # inputs that share a scale; it divides their number

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        assert inputs % self.group == 0, (inputs, self.group)
        assert self.scales.shape == self.offsets.shape == (outputs, inputs // self.group), self.scales.shape

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.codes.shape[0], self.codes.shape[1]

    def part(self, rows: RowRange | None = None, columns: RowRange | None = None) -> QuantizedWeight:
        """These outputs, or these inputs, whose limits are multiples of the group."""
        own = slice(*rows) if rows else slice(None)
        codes = self.codes[own, slice(*columns)] if columns else self.codes[own]
        groups = slice(None)
        if columns:
            assert columns[0] % self.group == columns[1] % self.group == 0, (columns, self.group)
            groups = slice(columns[0] // self.group, columns[1] // self.group)
        return QuantizedWeight(codes, self.scales[own, groups], self.offsets[own, groups], self.bits, self.group)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights as numbers, rounded to `dtype` at the end."""
        outputs, inputs = self.codes.shape
        codes = self.codes.view(outputs, inputs // self.group, self.group)
        weights = torch.addcmul(self.offsets[..., None], self.scales[..., None], codes.to(torch.float32))
        return weights.view(outputs, inputs).to(dtype)


def stack(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Products of the same input and in the same format, one below the other."""
    first = weights[0]
    assert all((each.bits, each.group) == (first.bits, first.group) for each in weights)
    parts = ([getattr(each, name) for each in weights] for name in ("codes", "scales", "offsets"))
    codes, scales, offsets = (torch.cat(part) for part in parts)
    return QuantizedWeight(codes, scales, offsets, first.bits, first.group)
