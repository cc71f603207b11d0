"""Values: the numbers that the codes of a quantized weight stand for, before they are multiplied by its scales."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import torch


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
        book = torch.tensor(self.book, dtype=torch.float32)
        return book.index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)

    def codes(self, numbers: torch.Tensor) -> torch.Tensor:
        """The codes whose numbers are nearest to these."""
        if self is Values.E4M3:
            return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
        if self is Values.INTEGERS:
            return numbers.round().to(torch.uint8)
        ordered, code = torch.tensor(self.book, dtype=torch.float32).sort()
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
