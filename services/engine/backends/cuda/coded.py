"""CodedWeight: a product's weights on the device as the checkpoint stores them, in the order in which a kernel reads.

The inputs are cut into steps. A word of 32 bits has the codes of one output at places that lie PLANE apart, so that
each shift of a tile of words gives a tile of neighbouring inputs, and a step is several products, one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch.nn.functional import pad

from services.engine.batch.buffers import Allocate, zeros
from services.engine.families.decoder_weights import Linear
from services.engine.weights.quantized import SUPER, QuantizedWeight, Values, times

WORD = 32  # bits
PLANES = (32, 16)  # inputs; the first that cuts no group is taken
E4M3_NAN = 0x7F  # with either sign
MOST_ENTRIES = 256  # of a table

Numbers = Literal["integers", "e4m3", "e2m1"]
Scales = Literal["floats", "halves", "exponents", "table", "supers"]
Offsets = Literal["middle", "zeros", "offsets"]

NUMBERS: dict[Values, Numbers] = {Values.INTEGERS: "integers", Values.E4M3: "e4m3", Values.E2M1: "e2m1"}
SCALE_BITS: dict[Scales, int] = {"floats": 32, "halves": 16, "exponents": 8, "table": 8, "supers": 8}
# The kernel reads floats of 8 and 4 bits as float32s with the same exponents, which are so much smaller.
FACTORS: dict[Numbers, float] = {"e4m3": 2.0**120, "e2m1": 2.0**126}
EXPONENT = 0x7F800000  # a float32's
UNIT = 2.0**23  # its bits with a code of up to 23 bits are so much more than the code


class Coding(NamedTuple):
    """What the words of a weight are.

    `numbers`: what codes stand for; of integers, a middle is taken off: half of the codes, or the group's zero; or they
    have offsets. `scales`, and so offsets: float32, float16, the exponent of a power of two, a byte for an entry of a
    table, or a byte times a float16 that several groups share.
    """

    bits: int  # of a code: 4 or 8
    plane: int  # neighbouring inputs in a tile of words
    groups: int  # of a step
    numbers: Numbers
    scales: Scales
    offsets: Offsets
    once: bool  # one group has all inputs

    @property
    def planes(self) -> int:
        """Tiles of neighbouring inputs in a step."""
        return WORD // self.bits

    @property
    def step(self) -> int:
        """Inputs of a step."""
        return self.plane * self.planes

    @property
    def times(self) -> float:
        """What the kernel multiplies scales by."""
        return FACTORS.get(self.numbers, 1.0)

    @property
    def fused(self) -> bool:
        """Whether one operation takes the middle off and multiplies: scales are short enough."""
        return (self.numbers, self.scales, self.offsets) == ("integers", "halves", "middle")

    @property
    def scale_bits(self) -> int:
        return SCALE_BITS[self.scales]

    @property
    def offset_bits(self) -> int:
        return {"middle": 0, "zeros": 8, "offsets": self.scale_bits}[self.offsets]

    @property
    def super_bit(self) -> int:
        """Where the float16s of supers begin, after scales and offsets."""
        return -(-self.groups * (self.scale_bits + self.offset_bits) // WORD) * WORD

    @property
    def factor_words(self) -> int:
        """Words with the scales and offsets of a step."""
        return self.super_bit // WORD + (self.scales == "supers")


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """Codes and factors as words, int32."""

    words: torch.Tensor  # [outputs, steps * plane]
    factors: torch.Tensor  # [steps, factor words, outputs]; one step if they are read once
    table: torch.Tensor  # float32: the scales that bytes stand for; of integers, UNIT
    coding: Coding

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight, with its share of factors."""
        return (self.words.nbytes + self.factors.nbytes) * self.coding.bits / 8 / self.words.nbytes


@dataclass(frozen=True, slots=True)
class CodedLinear(Linear):
    """A product by codes. `weight` has only the shape: it is a tensor without memory."""

    codes: CodedWeight = field(kw_only=True)


def encode(linear: Linear, device: torch.device, allocate: Allocate = zeros) -> CodedLinear | None:
    """The product with its codes on the device, in memory of `allocate`; its bias stays where it is. None if kernels
    would not give the numbers that codes stand for, or not fast: those of codebooks would be looked up one by one.

    The kernel rounds once, and the definition of integers twice. So scales must be short enough that their product with
    a code is exact.
    """
    stored = linear.weight
    assert isinstance(stored, QuantizedWeight)
    weight = _on(stored.centred(), device)
    if weight.values not in NUMBERS:
        return None
    numbers = NUMBERS[weight.values]
    if not (weight.scales * FACTORS.get(numbers, 1.0)).isfinite().all() or not weight.offsets.isfinite().all():
        return None
    if numbers == "e4m3" and (weight.codes & E4M3_NAN == E4M3_NAN).any():
        return None
    bits, inputs = 4 if weight.bits <= 4 else 8, weight.shape[1]
    once = weight.group == inputs
    plane = next((plane for plane in PLANES if once or weight.group % plane == 0), 0)
    if not plane:
        return None
    step = plane * WORD // bits
    if not once:
        weight = weight.regrouped(math.gcd(weight.group, step))
    offsets, zeros, bits_of_zeros = _offsets(weight)
    if numbers == "integers" and not _is_short(weight.scales, max(stored.bits, bits_of_zeros)):
        return None
    scales, fields, table = _scales(weight, offsets)
    groups = 1 if once else max(1, step // weight.group)
    coding = Coding(bits, plane, groups, numbers, scales, offsets, once)
    if zeros is not None:
        fields.append(zeros)
    steps = -(-inputs // step)
    codes = CodedWeight(
        words=_kept(_words(weight.codes, coding, steps), allocate),
        factors=_kept(_factors(fields, weight.supers, coding, 1 if once else steps), allocate),
        table=table,
        coding=coding,
    )
    shape = torch.empty(weight.shape, dtype=torch.bfloat16, device="meta")
    return CodedLinear(shape, linear.bias, linear.names, codes=codes)


def _kept(words: torch.Tensor, allocate: Allocate) -> torch.Tensor:
    return allocate(tuple(words.shape), words.dtype, words.device).copy_(words)


def _on(weight: QuantizedWeight, device: torch.device) -> QuantizedWeight:
    codes, scales, offsets = (each.to(device) for each in (weight.codes, weight.scales, weight.offsets))
    supers = tuple(each.to(device) for each in weight.supers)
    return replace(weight, codes=codes, scales=scales, offsets=offsets, supers=supers)


def _is_short(scales: torch.Tensor, bits: int) -> bool:
    """Whether a product of each with an integer of so many bits is a float32."""
    return not (_float_bits(scales) & ((1 << bits) - 1)).any()


def _offsets(weight: QuantizedWeight) -> tuple[Offsets, torch.Tensor | None, int]:
    """How offsets are kept, the zeros of groups if there are some, and how many bits these need."""
    if weight.values != Values.INTEGERS or weight.is_centred:
        return "middle", None, 0
    zeros = torch.where(weight.scales == 0, 0.0, -weight.offsets / weight.scales).round()
    if zeros.amin() >= 0 and zeros.amax() < 256 and torch.equal(-weight.scales * zeros, weight.offsets):
        return "zeros", zeros.to(torch.int32), int(zeros.amax()).bit_length()
    return "offsets", None, 0


def _scales(weight: QuantizedWeight, offsets: Offsets) -> tuple[Scales, list[torch.Tensor], torch.Tensor]:
    """How scales are kept, the integers that are kept of them, and of offsets, and the table."""
    factors = [weight.scales, weight.offsets][: 2 if offsets == "offsets" else 1]
    supers = weight.supers[: len(factors)]
    unit = weight.scales.new_full((1,), UNIT)
    if weight.values != Values.INTEGERS and weight.group <= PLANES[0]:
        words = _float_bits(weight.scales)
        if not (words & ~EXPONENT).any():
            return "exponents", [words >> 23], unit
        entries, places = weight.scales.unique(return_inverse=True)
        if len(entries) <= MOST_ENTRIES:
            return "table", [places.to(torch.int32)], entries
    if all(map(_is_half, factors)):
        return "halves", [_half_bits(each) for each in factors], unit
    counts = times(factors, supers)
    if counts and all(map(_is_half, supers)):
        return "supers", [each.to(torch.int32) & 0xFF for each in counts], unit
    return "floats", [_float_bits(each) for each in factors], unit


def _float_bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.contiguous().view(torch.int32)


def _is_half(numbers: torch.Tensor) -> bool:
    return torch.equal(numbers.to(torch.float16).to(torch.float32), numbers)


def _half_bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.to(torch.float16).contiguous().view(torch.int16).to(torch.int32) & 0xFFFF


def _words(codes: torch.Tensor, coding: Coding, steps: int) -> torch.Tensor:
    """Codes [outputs, inputs] as words; those behind the last input are zeros."""
    outputs, inputs = codes.shape
    each = pad(codes, (0, steps * coding.step - inputs)).view(outputs, steps, -1, coding.plane)
    words = torch.zeros(outputs, steps, coding.plane, dtype=torch.int32, device=codes.device)
    for place in range(each.shape[2]):
        words |= each[:, :, place].to(torch.int32) << coding.bits * place
    return words.view(outputs, -1)


def _factors(fields: list[torch.Tensor], supers: tuple[torch.Tensor, ...], coding: Coding, steps: int) -> torch.Tensor:
    """Integers [outputs, groups] as words: scales, then offsets or zeros, then the float16s of supers."""
    outputs, given = fields[0].shape
    words = torch.zeros(steps, coding.factor_words, outputs, dtype=torch.int32, device=fields[0].device)
    begin = 0
    for own, bits in zip(fields, (coding.scale_bits, coding.offset_bits), strict=False):
        of_steps = pad(own, (0, steps * coding.groups - given)).view(outputs, steps, coding.groups)
        for group in range(coding.groups):
            word, place = divmod(begin + group * bits, WORD)
            words[:, word] |= of_steps[:, :, group].t() << place
        begin += coding.groups * bits
    if coding.scales == "supers":
        shared = torch.arange(steps, device=words.device) * coding.step // SUPER
        for own, place in zip(supers[: len(fields)], (0, 16), strict=False):
            words[:, coding.super_bit // WORD] |= _half_bits(own)[:, shared].t() << place
    return words
