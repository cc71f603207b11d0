"""QuantizedWeight: a product's weights as a checkpoint stores them: codes of few bits, with a scale for each group of
inputs. Values: the numbers that codes stand for, before they are multiplied by scales.

Backends round the weights to bfloat16, as `dequantize` does, so it makes no difference to a product whether the codes
or the numbers are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import torch

from services.engine.parallel.layout import RowRange

PIECE = 1 << 19  # weights that are widened at a time
SUPER = 256  # inputs that share the factors of scales and offsets


class Values(StrEnum):
    """INTEGERS: codes are the numbers themselves. E4M3: the eight bits of FP8 (OCP's, without infinities). The others
    are codebooks of 16 numbers: the floats of four bits of MXFP4 and NVFP4, the numbers of GGUF's IQ4_NL and IQ4_XS,
    and those of bitsandbytes' NF4, quantiles of a normal distribution."""

    INTEGERS = "integers"
    E4M3 = "e4m3"
    E2M1 = "e2m1"
    IQ4_NL = "iq4_nl"
    NF4 = "nf4"

    @property
    def book(self) -> tuple[float, ...]:
        """The number of each code of four bits; none of what is no codebook."""
        return BOOKS.get(self, ())

    @property
    def most(self) -> float:
        """The largest number, of what are no integers."""
        return max(map(abs, self.book)) if self.book else torch.finfo(torch.float8_e4m3fn).max

    def numbers(self, codes: torch.Tensor) -> torch.Tensor:
        """What the codes, uint8, stand for, in float32."""
        if self is Values.E4M3:
            return codes.contiguous().view(torch.float8_e4m3fn).to(torch.float32)
        if self is Values.INTEGERS:
            return codes.to(torch.float32)
        book = torch.tensor(self.book, dtype=torch.float32, device=codes.device)
        return book.index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)

    def codes(self, numbers: torch.Tensor) -> torch.Tensor:
        """The codes whose numbers are nearest to these."""
        if self is Values.E4M3:
            return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
        if self is Values.INTEGERS:
            return numbers.round().to(torch.uint8)
        ordered, code = torch.tensor(self.book, dtype=torch.float32, device=numbers.device).sort()
        middles = (ordered[1:] + ordered[:-1]) / 2
        return code[torch.bucketize(numbers, middles)].to(torch.uint8)


# float32 has these numbers
_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BOOKS: dict[Values, tuple[float, ...]] = {
    Values.E2M1: (*_E2M1, *(-number for number in _E2M1)),
    Values.NF4: _NF4,
    Values.IQ4_NL: (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}


class GroupFormat(NamedTuple):
    """How a weight is stored in groups of inputs, each with a scale."""

    bits: int  # of a code, 2 to 8
    size: int  # inputs of a group
    values: Values = Values.INTEGERS


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Weights [outputs, inputs]: `scales[o, i // group] * codes[o, i] + offsets[o, i // group]`, in float32. Instead of
    codes that are no integers, the numbers that they stand for are multiplied, and offsets are 0.

    The types of GGUF files, GPTQ, AWQ, FP8, MXFP4 and the integers of compressed-tensors all have this form.
    """

    codes: torch.Tensor  # [outputs, inputs], uint8: 0 to 2^bits - 1
    scales: torch.Tensor  # [outputs, inputs / group], float32
    offsets: torch.Tensor  # [outputs, inputs / group], float32
    bits: int  # 2 to 8
    group: int  # inputs that share a scale; it divides their number
    values: Values = Values.INTEGERS  # what codes stand for
    # [outputs, inputs / SUPER] each, float16 in float32: if scales, and offsets, are integers of a byte times these
    supers: tuple[torch.Tensor, ...] = ()

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        assert inputs % self.group == 0, (inputs, self.group)
        assert self.scales.shape == self.offsets.shape == (outputs, inputs // self.group), self.scales.shape

    @classmethod
    def of_values(cls, codes: torch.Tensor, scales: torch.Tensor, group: int, values: Values) -> QuantizedWeight:
        """Codes that are no integers."""
        return cls(codes, scales, scales.new_zeros(()).expand_as(scales), 4 if values.book else 8, group, values)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def is_centred(self) -> bool:
        """Whether every weight is `scale * (code - middle)`, with the middle of the codes of 4 or 8 bits in which they
        are kept. Codes that are no integers have no middle."""
        if self.values != Values.INTEGERS:
            return False
        middle = 1 << (4 if self.bits <= 4 else 8) - 1
        return torch.equal(self.offsets, self.scales * -middle)

    def centred(self) -> QuantizedWeight:
        """These weights with larger codes, if that makes them centred."""
        if self.is_centred or self.values != Values.INTEGERS:
            return self
        kept = 4 if self.bits <= 4 else 8
        shift = (1 << kept - 1) - (1 << self.bits - 1)
        if not shift or not torch.equal(self.offsets, self.scales * -(1 << self.bits - 1)):
            return self
        return replace(self, codes=self.codes + shift, offsets=self.scales * -(1 << kept - 1), bits=kept)

    def part(self, rows: RowRange | None = None, columns: RowRange | None = None) -> QuantizedWeight:
        """These outputs, or these inputs. Groups become smaller if the inputs end within one."""
        first, end = columns or (0, self.shape[1])
        if first % self.group or end % self.group:
            return self.regrouped(math.gcd(self.group, first, end)).part(rows, columns)
        own = slice(*rows or (None,))
        groups, larger = (slice(first // size, end // size) for size in (self.group, SUPER))
        return replace(
            self,
            codes=self.codes[own, first:end],
            scales=self.scales[own, groups],
            offsets=self.offsets[own, groups],
            supers=() if first % SUPER or end % SUPER else tuple(each[own, larger] for each in self.supers),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: torch.Tensor) -> QuantizedWeight:
        """These outputs, in this order."""
        codes, scales, offsets = (each[rows] for each in (self.codes, self.scales, self.offsets))
        supers = tuple(each[rows] for each in self.supers)
        return replace(self, codes=codes, scales=scales, offsets=offsets, supers=supers)

    def regrouped(self, group: int) -> QuantizedWeight:
        """These weights in smaller groups."""
        assert self.group % group == 0, (self.group, group)
        scales, offsets = (each.repeat_interleave(self.group // group, 1) for each in (self.scales, self.offsets))
        return replace(self, scales=scales, offsets=offsets, group=group)

    def dequantize(self, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The weights as numbers: computed in float32, rounded to `dtype` at the end; of a large weight some rows at a
        time, because memory for all of them in float32 would be new pages, which take longer than the numbers."""
        outputs, inputs = self.codes.shape
        rows = max(1, PIECE // inputs)
        if outputs <= rows:
            return self._numbers().to(dtype)
        weights = torch.empty(outputs, inputs, dtype=dtype, device=self.codes.device)
        for first in range(0, outputs, rows):
            own = first, min(first + rows, outputs)
            weights[slice(*own)] = self.part(own)._numbers()
        return weights

    def _numbers(self) -> torch.Tensor:
        outputs, inputs = self.codes.shape
        numbers = self.values.numbers(self.codes.view(outputs, inputs // self.group, self.group))
        if self.values != Values.INTEGERS:
            return numbers.mul_(self.scales[..., None]).view(outputs, inputs)
        return torch.addcmul(self.offsets[..., None], self.scales[..., None], numbers).view(outputs, inputs)


Weight = torch.Tensor | QuantizedWeight  # of a product


def quantize(weight: torch.Tensor, form: GroupFormat) -> QuantizedWeight:
    """Numbers [outputs, inputs] as codes: of integers between the least and the largest of each group, of others up to
    the largest size."""
    outputs, inputs = weight.shape
    bits, size, values = form
    groups = weight.to(torch.float32).view(outputs, inputs // size, size)
    if values != Values.INTEGERS:
        scales = groups.abs().amax(-1) / values.most
        scales = halves(scales) if values.book else scales
        codes = values.codes((groups / scales[..., None]).clamp(-values.most, values.most))
        return QuantizedWeight.of_values(codes.view(outputs, inputs), scales, size, values)
    least, most = groups.amin(-1), groups.amax(-1)
    scales, offsets = halves((most - least) / ((1 << bits) - 1)), halves(least)
    codes = values.codes(((groups - offsets[..., None]) / scales[..., None]).clamp_(0, (1 << bits) - 1))
    return QuantizedWeight(codes.view(outputs, inputs), scales, offsets, bits, size)


def halves(factors: torch.Tensor) -> torch.Tensor:
    """Rounded to float16, as GGUF files have them."""
    return factors.to(torch.float16).to(torch.float32)


def times(factors: Sequence[torch.Tensor], supers: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """How many times its super each factor is, in float32: a signed byte; None if they are no such multiples."""
    if len(supers) != len(factors):
        return None
    found = []
    for each, large in zip(factors, supers, strict=True):
        whole = large[..., None]
        groups = each.reshape(*large.shape, -1)
        count = (groups / whole).nan_to_num_(0).round_()  # in place: new pages take longer than the numbers
        least, most = count.aminmax()
        if least < -128 or most > 127 or not torch.equal(count * whole, groups):
            return None
        found.append(count.view_as(each))
    return found


def stack(weights: Sequence[Weight]) -> Weight:
    """Products of the same input, one below the other, with the largest codes and the smallest groups of them; as
    numbers if one of them is kept so, or if their codes stand for other values."""
    quantized = [each for each in weights if isinstance(each, QuantizedWeight)]
    if len(quantized) < len(weights) or len({each.values for each in quantized}) > 1:
        return torch.cat([each.dequantize() if isinstance(each, QuantizedWeight) else each for each in weights])
    bits, group = max(each.bits for each in quantized), math.gcd(*(each.group for each in quantized))
    same = [each.regrouped(group) for each in quantized]
    parts = ([getattr(each, name) for each in same] for name in ("codes", "scales", "offsets"))
    codes, scales, offsets = (torch.cat(part) for part in parts)
    count = min(len(each.supers) for each in quantized)
    supers = tuple(torch.cat([each.supers[i] for each in quantized]) for i in range(count))
    return QuantizedWeight(codes, scales, offsets, bits, group, quantized[0].values, supers)
