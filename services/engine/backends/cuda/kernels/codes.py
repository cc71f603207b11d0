"""Products of quantized weights: a program dequantizes its tile in registers, from where a tensor core may read its
left operand. `C` is a Coding everywhere."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_of_codes(
    x_row,
    there,
    words_row,
    factors,
    outputs,
    table,
    inputs,
    end,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    C: tl.constexpr,
):
    """Float32 sums [COLUMNS, ROWS] over the inputs before `end` in ascending order, of weights rounded to bfloat16.

    Takes pointers to rows of x [ROWS], and which of them are read; pointers to rows of words and to the first factors
    of these outputs [COLUMNS], of which the weight has so many in all. `EVEN`: steps have no inputs behind the last.
    """
    PLANES: tl.constexpr = C.planes
    depth = tl.arange(0, C.plane)
    words_at = words_row[:, None] + depth[None, :]
    x_at = x_row[None, :] + depth[:, None]
    # Loaded, because an instruction that takes a code out of its word and joins it with these bits has one constant.
    unit = tl.load(table + tl.zeros((COLUMNS,), tl.int32)).to(tl.int32, bitcast=True)[:, None]
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    if C.once:
        scale, offset = _factors(factors, table, outputs, 0, C)
    for step in range(0, tl.cdiv(end, C.step)):
        word = tl.load(words_at + step * C.plane)
        for n in tl.static_range(PLANES):
            begin = step * C.step + n * C.plane
            if EVEN:
                b = tl.load(x_at + begin, there[None, :], 0.0)
            else:
                b = tl.load(x_at + begin, (depth < inputs - begin)[:, None] & there[None, :], 0.0)
            if (n * C.groups % PLANES == 0) and not C.once:
                at = factors + step * (C.factor_words * outputs)
                scale, offset = _factors(at, table, outputs, n * C.groups // PLANES, C)
            weight = _weights(word, unit, scale, offset, n, C)
            total = tl.dot(weight.to(tl.bfloat16).to(b.dtype), b, total, input_precision="ieee")
    return total


@triton.jit
def _weights(word, unit, scale, offset, N: tl.constexpr, C: tl.constexpr):
    """The weights of tile N of the words, in float32."""
    if C.fused:
        # At these places what is taken off, OFF, times a float16 is a float32; so one operation gives the product of
        # scale and code less the middle, rounded once.
        AT: tl.constexpr = 8 + N * C.bits % 8
        OFF: tl.constexpr = 2.0 ** (23 - AT) + (1 << C.bits - 1)
        moved = word << 8 if N * C.bits < 8 else word >> (N * C.bits - AT)
        number = ((moved & (((1 << C.bits) - 1) << AT)) | (unit - (AT << 23))).to(tl.float32, bitcast=True)
        each = tl.broadcast_to(scale[:, None], word.shape)
        weights = tl.fma(number, each, tl.broadcast_to((scale * -OFF)[:, None], word.shape))
    elif C.numbers == "integers":
        SHIFT: tl.constexpr = 16 * (N * C.bits // 16)
        PLACE: tl.constexpr = N * C.bits % 16
        CODE: tl.constexpr = ((1 << C.bits) - 1) << PLACE
        START: tl.constexpr = 2.0 ** (23 - PLACE)
        number = (((word >> SHIFT) & CODE) | (unit - (PLACE << 23))).to(tl.float32, bitcast=True)  # START + code
        if C.offsets == "middle":
            weights = (number - (START + (1 << C.bits - 1))) * scale[:, None]
        elif C.offsets == "zeros":
            weights = (number - (START + offset)[:, None]) * scale[:, None]
        else:
            # the product is exact, so it makes no difference whether both operations are fused
            weights = (number - START) * scale[:, None] + offset[:, None]
    else:
        # exponent and fraction go where a float32 has them, the sign before them
        PLACES: tl.constexpr = 4 if C.numbers == "e4m3" else 6
        KEPT: tl.constexpr = -0x78100000 if C.numbers == "e4m3" else -0x7E400000  # 0x87F00000, 0x81C00000
        number = (((word << (32 - C.bits * (N + 1))) >> PLACES) & KEPT).to(tl.float32, bitcast=True)
        weights = number * scale[:, None]
    return weights


@triton.jit
def _factors(at, table, outputs, GROUP: tl.constexpr, C: tl.constexpr):
    """The scale of this group of a step, and its zero or offset, in float32."""
    scale = _factor(at, table, outputs, GROUP * C.scale_bits, C.super_bit, C) * C.times
    offset = scale
    if C.offsets != "middle":
        BIT: tl.constexpr = C.groups * C.scale_bits + GROUP * C.offset_bits
        if C.offsets == "zeros":
            offset = (_field(at, outputs, BIT, 8) & 0xFF).to(tl.float32)
        else:
            offset = _factor(at, table, outputs, BIT, C.super_bit + 16, C)
    return scale, offset


@triton.jit
def _factor(at, table, outputs, BIT: tl.constexpr, SUPER_BIT: tl.constexpr, C: tl.constexpr):
    """The factor whose integer begins at `BIT`; `SUPER_BIT`: where what multiplies it does, if something does."""
    if C.scales == "floats":
        factor = _field(at, outputs, BIT, 32).to(tl.float32, bitcast=True)
    elif C.scales == "halves":
        factor = _half(at, outputs, BIT)
    elif C.scales == "exponents":
        factor = ((_field(at, outputs, BIT, 8) & 0xFF) << 23).to(tl.float32, bitcast=True)
    elif C.scales == "table":
        factor = tl.load(table + (_field(at, outputs, BIT, 8) & 0xFF))
    else:
        factor = _field(at, outputs, BIT, 8).to(tl.float32) * _half(at, outputs, SUPER_BIT)
    return factor


@triton.jit
def _half(at, outputs, BIT: tl.constexpr):
    return _field(at, outputs, BIT, 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _field(at, outputs, BIT: tl.constexpr, BITS: tl.constexpr):
    """The signed integer of `BITS` that begins at `BIT` of each output's words."""
    word = tl.load(at + BIT // 32 * outputs)
    return (word << (32 - BITS - BIT % 32)) >> (32 - BITS)
