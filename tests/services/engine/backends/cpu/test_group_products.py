"""Products by weights in groups beside products by the same weights as numbers, for each way in which they are kept."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

from services.engine.backends.cpu.build import kernels
from services.engine.backends.cpu.packed import Factors, PackedMatrix, WeightKind
from services.engine.backends.cpu.packing import Packer
from services.engine.families.decoder_weights import Linear
from services.engine.weights.gguf import FORMATS as FILES
from services.engine.weights.gguf import read_blocks
from services.engine.weights.quantized import SUPER, QuantizedWeight, Values, stack
from services.files import user_cache

ROWS = (1, 2, 3, 4, 5, 8, 10, 11, 12, 13, 15, 16, 17, 33, 64, 100, 500)  # about the sizes of tiles and blocks
SHAPES = ((96, 64), (100, 96), (33, 32), (7, 160), (40, 512))  # outputs, inputs
INTEGERS = {  # bits, group, whether offsets are those of codes about a middle, whether factors are float16
    "Q4_0": (4, 32, True, True),
    "Q4_1": (4, 32, False, True),
    "Q4_K": (4, 32, False, False),
    "Q6_K": (6, 16, True, False),
    "Q5_0": (5, 32, True, True),
    "Q5_1": (5, 32, False, True),
    "Q5_K": (5, 32, False, False),
    "six bits with zeros": (6, 16, False, True),
    "Q8_0": (8, 32, True, True),
    "eight bits with zeros": (8, 32, False, True),
    "four bits, groups of 16": (4, 16, False, True),
    "one group": (4, 0, False, True),
}
OTHERS = {  # values, group, whether scales are float16
    "FP8": (Values.E4M3, 32, False),
    "FP8 of short scales": (Values.E4M3, 16, True),
    "FP8, one group": (Values.E4M3, 0, False),
    "MXFP4": (Values.E2M1, 32, True),
    "MXFP4 of long scales": (Values.E2M1, 32, False),
    "IQ4_NL": (Values.IQ4_NL, 32, True),
}
FORMATS = INTEGERS | OTHERS


def draw(shape: tuple[int, int], name: str) -> QuantizedWeight:
    drawn = torch.Generator().manual_seed(1)
    if name in OTHERS:
        return draw_values(shape, *OTHERS[name], drawn)
    bits, group, centred, halves = INTEGERS[name]
    group = group or shape[1]
    factors = (shape[0], shape[1] // group)
    codes = torch.randint(1 << bits, shape, generator=drawn, dtype=torch.uint8)
    scales = torch.rand(factors, generator=drawn) / (1 << bits)
    offsets = torch.randn(factors, generator=drawn)
    if halves:
        scales, offsets = scales.half().float(), offsets.half().float()
    return QuantizedWeight(codes, scales, scales * -(1 << bits - 1) if centred else offsets, bits, group)


def draw_values(
    shape: tuple[int, int], values: Values, group: int, halves: bool, drawn: torch.Generator
) -> QuantizedWeight:
    """All codes but NaN, of which FP8 has one for each sign."""
    group = group or shape[1]
    codes = torch.randint(16 if values.book else 256, shape, generator=drawn, dtype=torch.uint8)
    if values == Values.E4M3:
        codes[codes & 0x7F == 0x7F] -= 1
    scales = (torch.rand((shape[0], shape[1] // group), generator=drawn) - 0.3) / values.most
    return QuantizedWeight.of_values(codes, scales.half().float() if halves else scales, group, values)


def multiply(packer: Packer, matrix: PackedMatrix, x: torch.Tensor) -> torch.Tensor:
    to = torch.full((len(x), matrix.outputs), torch.nan)
    packer._library.orca_multiply(
        ctypes.byref(matrix.struct()), ctypes.c_void_p(x.data_ptr()), len(x), 2, ctypes.c_void_p(to.data_ptr())
    )
    return to


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *itertools.product(FORMATS, SHAPES),
        *itertools.product(["four bits, groups of 16", "Q6_K", "FP8 of short scales"], [(600, 80)]),
    ],
)
def test_products_are_those_of_the_same_weights_as_numbers(
    name: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Bitwise, for any number of rows: the codes are widened to the numbers that the other kinds keep."""
    weight = draw(shape, name)
    packer = Packer(kernels(user_cache()), dtype, 2)
    matrix = packer.matrix(Linear(weight))
    assert matrix.kind == (WeightKind.GROUPS_DOTS if dtype == torch.bfloat16 and packer.units else WeightKind.GROUPS)
    wide = packer.matrix(Linear(weight.dequantize()))
    x = torch.randn(max(ROWS), shape[1], generator=torch.Generator().manual_seed(2))
    whole = multiply(packer, wide, x)
    for rows in ROWS:
        assert torch.equal(multiply(packer, matrix, x[:rows]), whole[:rows])
    rounded = x.bfloat16() if matrix.kind.has_bfloat16_rows else x
    torch.testing.assert_close(whole.double(), rounded.double() @ weight.dequantize().double().T, rtol=0, atol=4e-4)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "one group", "FP8"])
def test_deep_products_of_many_outputs_have_the_bits_of_few_rows(name: str) -> None:
    """Units multiply many rows a part of the depth at a time, and few rows by all of it."""
    weight = draw((2100, 3616), name)
    packer = Packer(kernels(user_cache()), torch.bfloat16, 2)
    matrix, wide = packer.matrix(Linear(weight)), packer.matrix(Linear(weight.dequantize()))
    x = torch.randn(100, 3616, generator=torch.Generator().manual_seed(2))
    few = torch.cat([multiply(packer, wide, some.contiguous()) for some in x.split(20)])
    for rows in (1, 40, 100):
        assert torch.equal(multiply(packer, wide, x[:rows]), few[:rows])
        assert torch.equal(multiply(packer, matrix, x[:rows]), few[:rows])


def draw_blocks(kind: str, shape: tuple[int, int], seed: int = 1) -> QuantizedWeight:
    """Random blocks of a GGUF file, with moderate float16."""
    form = FILES[kind]
    drawn = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (shape[0] * shape[1] // SUPER, form.block), generator=drawn, dtype=torch.uint8)
    for at, _ in form.supers:
        blocks[:, at + 1] = blocks[:, at + 1] & 0x83 | 0x20
    blocks[0, [at + byte for at, _ in form.supers for byte in (0, 1)]] = 0  # a block of zeros
    return read_blocks(kind, blocks.view(shape[0], -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Q4_K", "IQ4_XS", "Q5_K", "Q6_K"])
def test_scales_of_k_quants_are_kept_as_stored(kind: str, dtype: torch.dtype) -> None:
    """In hardly more bytes than in the file."""
    weight = draw_blocks(kind, (64, 512))
    packer = Packer(kernels(user_cache()), dtype, 2)
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(2))
    for part in (weight, weight.part(columns=(256, 512)), weight.take(torch.arange(63, 30, -1))):
        matrix = packer.matrix(Linear(part))
        assert matrix.groups is not None
        assert matrix.groups.factors == Factors.BYTES
        if len(part) == 64:
            assert matrix.panels.nbytes == matrix.groups.bytes * part.shape[0] * part.shape[1]
            assert matrix.panels.nbytes <= 1.03 * part.shape[0] * part.shape[1] / SUPER * FILES[kind].block
        whole = multiply(packer, packer.matrix(Linear(part.dequantize())), x[:, : part.shape[1]].contiguous())
        for rows in ROWS[:12]:
            assert torch.equal(multiply(packer, matrix, x[:rows, : part.shape[1]].contiguous()), whole[:rows])


def test_k_quants_of_one_input_are_kept_together() -> None:
    """As queries, keys and values of Q4_K_M; groups that end within larger ones have factors of their own."""
    packer = Packer(kernels(user_cache()), torch.float32, 2)
    both = stack([draw_blocks("Q4_K", (64, 512)), draw_blocks("Q6_K", (32, 512), 3)])
    assert isinstance(both, QuantizedWeight)
    x = torch.randn(3, 512)
    for weight, kept in ((both, Factors.BYTES), (both.part(columns=(128, 512)), Factors.FLOATS)):
        matrix, own = packer.matrix(Linear(weight)), x[:, : weight.shape[1]].contiguous()
        assert matrix.groups is not None
        assert matrix.groups.factors == kept
        assert torch.equal(
            multiply(packer, matrix, own), multiply(packer, packer.matrix(Linear(weight.dequantize())), own)
        )


@pytest.mark.parametrize("name", FORMATS)
def test_gates_are_beside_what_they_multiply(name: str) -> None:
    weight = draw((100, 64), name)
    packer = Packer(kernels(user_cache()), torch.bfloat16, 2)
    gated, wide = (packer.matrix(Linear(each), gated=True) for each in (weight, weight.dequantize()))
    x = torch.randn(3, 64)
    assert torch.equal(multiply(packer, gated, x), multiply(packer, wide, x))


def test_weights_are_rounded_to_the_nearest_and_ties_to_even() -> None:
    """All codes of eight bits with scales whose products are ties, and just beside ties and powers of two."""
    scales = torch.tensor([1.0, 1 + 2**-7, 1 + 2**-8, 3 + 2**-7, 2 - 2**-10, 2 - 2**-23, 1 + 2**-23, 257 / 2**30, -1.5])
    codes = torch.arange(256, dtype=torch.uint8).repeat(2 * len(scales), 1)
    factors = scales.repeat(2)[:, None].repeat(1, 8)
    offsets = torch.cat([torch.zeros(len(scales), 8), torch.full((len(scales), 8), 2**-9)])
    weight = QuantizedWeight(codes, factors, offsets, 8, 32)
    matrix = Packer(kernels(user_cache()), torch.float32, 1).matrix(Linear(weight))
    assert matrix.kind == WeightKind.GROUPS
    assert torch.equal(multiply_by_ones(matrix), weight.dequantize().float().T)


def multiply_by_ones(matrix: PackedMatrix) -> torch.Tensor:
    """Each weight by itself [inputs, outputs]."""
    return multiply(Packer(kernels(user_cache()), torch.float32, 1), matrix, torch.eye(matrix.inputs))


@pytest.mark.parametrize(("scale", "offset"), [(2.0**110, 0.0), (1.0, -(2.0**110)), (torch.nan, 0.0), (torch.inf, 0.0)])
def test_weights_that_the_kernels_cannot_round_are_widened(scale: float, offset: float) -> None:
    weight = draw((40, 64), "Q4_1")
    weight.scales[3, 1], weight.offsets[3, 1] = scale, offset
    matrix = Packer(kernels(user_cache()), torch.float32, 1).matrix(Linear(weight))
    assert matrix.kind == WeightKind.BFLOAT16


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_read_as_they_were_stored(stored: torch.dtype) -> None:
    packer = Packer(kernels(user_cache()), torch.float32, 2)
    weight = torch.randn(70, 48).to(stored)
    matrix = packer.matrix(Linear(weight))
    assert matrix.keeps(weight)
    found = torch.empty(12, 48)
    ids = torch.arange(58, 70, dtype=torch.int32)
    packer._library.orca_read_outputs(
        ctypes.byref(matrix.struct()), ctypes.c_void_p(ids.data_ptr()), 12, 2, ctypes.c_void_p(found.data_ptr())
    )
    assert torch.equal(found, weight[58:].float())


def test_groups_that_fill_no_step_are_widened() -> None:
    weight = QuantizedWeight(torch.ones(40, 24, dtype=torch.uint8), torch.ones(40, 3), torch.ones(40, 3), 4, 8)
    matrix = Packer(kernels(user_cache()), torch.float32, 1).matrix(Linear(weight))
    assert matrix.kind == WeightKind.BFLOAT16


@pytest.mark.parametrize(("code", "scale"), [(0x7F, 1.0), (0xFF, 1.0), (0x01, 300.0)])
def test_fp8_that_the_kernels_do_not_know_is_widened(code: int, scale: float) -> None:
    """NaN, and scales so large that a factor would make them infinite."""
    weight = draw((40, 64), "FP8")
    assert Packer(kernels(user_cache()), torch.float32, 1).matrix(Linear(weight)).kind == WeightKind.GROUPS
    weight.codes[7, 9], weight.scales[7, 0] = code, scale
    matrix = Packer(kernels(user_cache()), torch.float32, 1).matrix(Linear(weight))
    assert matrix.kind == WeightKind.BFLOAT16
