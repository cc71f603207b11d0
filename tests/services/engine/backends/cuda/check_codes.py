"""Products by codes in Triton's interpreter: bits are those of the widened weights. Run by test_interpreted.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from services.engine.backends.cuda.coded import CodedLinear, encode
from services.engine.backends.cuda.kernels.product import CODES_TILES, Tile, multiply
from services.engine.backends.cuda.products import Products
from services.engine.families.decoder_weights import Linear
from services.engine.weights.gguf import FORMATS, read_blocks
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values, quantize, stack

CPU = torch.device("cpu")
OUTPUTS = 40
PLAIN = Tile(rows=16, outputs=64, depth=16, warps=4, stages=2)
NARROW = Tile(rows=8, outputs=16, depth=0, warps=4, stages=2, swapped=True)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def in_blocks(kind: str) -> QuantizedWeight:
    """A weight of a GGUF file with random bytes, and float16s of a usual size."""
    form, blocks = FORMATS[kind], 1 if FORMATS[kind].block > 100 else 9
    raw = torch.randint(0, 256, (OUTPUTS, blocks, form.block), dtype=torch.uint8)
    halves = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for at in halves.get(kind, (0,)):
        raw[:, :, at : at + 2] = (torch.randn(OUTPUTS, blocks, 1) * 0.01).half().view(torch.uint8)
    return read_blocks(kind, raw.flatten(1))


def integers(bits: int, group: int, zeros: bool, inputs: int = 288) -> QuantizedWeight:
    """As GPTQ and AWQ store them, in float16."""
    codes = torch.randint(0, 1 << bits, (OUTPUTS, inputs), dtype=torch.uint8)
    scales = (torch.rand(OUTPUTS, inputs // group) * 0.02).half().float()
    middle = torch.full_like(scales, 1 << bits - 1)
    zero = torch.randint(0, min(255, 1 << bits) + 1, scales.shape).float() if zeros else middle
    return QuantizedWeight(codes, scales, -scales * zero, bits, group)


def floats(values: Values, group: int, inputs: int, scales: torch.Tensor) -> QuantizedWeight:
    codes = torch.randint(0, 16 if values.book else 256, (OUTPUTS, inputs), dtype=torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    return QuantizedWeight.of_values(codes, scales.expand(OUTPUTS, inputs // group).contiguous(), group, values)


def powers(groups: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-12, 2, (OUTPUTS, groups)).float())


torch.manual_seed(0)
# by the name of the layout: the weight, and how its numbers, scales and offsets are kept
LAYOUTS = {
    "gptq": (integers(4, 32, False), ("integers", "halves", "middle")),
    "gptq of 8 bits": (integers(8, 96, False), ("integers", "halves", "middle")),
    "gptq of 3 bits": (integers(3, 32, False), ("integers", "halves", "middle")),
    "awq": (integers(4, 96, True), ("integers", "halves", "zeros")),
    "integers with zeros in groups of 128": (integers(4, 128, True, 512), ("integers", "halves", "zeros")),
    "8 bits with zeros by output": (integers(8, 288, True), ("integers", "halves", "zeros")),
    "fp8 by output": (floats(Values.E4M3, 100, 100, torch.rand(OUTPUTS, 1)), ("e4m3", "floats", "middle")),
    "fp8 of blocks": (floats(Values.E4M3, 128, 384, torch.rand(1, 3)), ("e4m3", "floats", "middle")),
    "mxfp8": (floats(Values.E4M3, 32, 96, powers(3)), ("e4m3", "exponents", "middle")),
    "mxfp4": (floats(Values.E2M1, 32, 96, powers(3)), ("e2m1", "exponents", "middle")),
    "nvfp4": (
        floats(Values.E2M1, 16, 80, torch.rand(OUTPUTS, 5).to(torch.float8_e4m3fn).float() / 7.3),
        ("e2m1", "table", "middle"),
    ),
    "nvfp4 with many scales": (floats(Values.E2M1, 16, 144, torch.rand(OUTPUTS, 9)), ("e2m1", "floats", "middle")),
    "Q4_0": (in_blocks("Q4_0"), ("integers", "halves", "middle")),
    "Q4_1": (in_blocks("Q4_1"), ("integers", "halves", "offsets")),
    "Q5_0": (in_blocks("Q5_0"), ("integers", "halves", "middle")),
    "Q5_1": (in_blocks("Q5_1"), ("integers", "halves", "offsets")),
    "Q8_0": (in_blocks("Q8_0"), ("integers", "halves", "middle")),
    "Q4_K": (in_blocks("Q4_K"), ("integers", "supers", "offsets")),
    "Q5_K": (in_blocks("Q5_K"), ("integers", "supers", "offsets")),
    "Q6_K": (in_blocks("Q6_K"), ("integers", "supers", "middle")),
}


def coded(weight: QuantizedWeight, bias: torch.Tensor | None = None) -> CodedLinear:
    found = encode(Linear(weight, bias), CPU)
    assert found
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_products_have_the_bits_of_the_widened_weights(name: str) -> None:
    weight, kept = LAYOUTS[name]
    linear = coded(weight, torch.randn(OUTPUTS).bfloat16())
    coding = linear.codes.coding
    assert (coding.numbers, coding.scales, coding.offsets) == kept
    check(linear, weight, torch.bfloat16)


@pytest.mark.parametrize("name", ["awq", "fp8 of blocks", "Q4_K"])
def test_products_in_float32_have_the_bits_of_the_widened_weights(name: str) -> None:
    check(coded(LAYOUTS[name][0]), LAYOUTS[name][0], torch.float32)


def check(linear: CodedLinear, weight: QuantizedWeight, dtype: torch.dtype) -> None:
    x = torch.randn(3, weight.shape[1]).to(dtype)
    expected = multiply(x, Linear(weight.dequantize().to(dtype), linear.bias), dtype, PLAIN)
    assert torch.equal(multiply(x, linear, dtype, NARROW), expected)
    assert expected.isfinite().all()
    assert expected.any()


@pytest.mark.parametrize("name", ["gptq", "fp8 by output"])
def test_products_have_the_same_bits_in_every_tile(name: str) -> None:
    linear = coded(LAYOUTS[name][0])
    x = torch.randn(70, linear.weight.shape[1]).bfloat16()
    whole = multiply(x, linear, torch.float32, CODES_TILES[-1][2])
    for tile in {tile for _, _, tile in CODES_TILES}:
        for rows in (slice(0, 1), slice(64, 70)):
            assert torch.equal(multiply(x[rows].contiguous(), linear, torch.float32, tile), whole[rows]), tile


def test_what_is_fused_is_kept_as_codes() -> None:
    """Of queries, keys and values some may have larger groups."""
    parts = [integers(4, 96, True), integers(4, 288, False)]
    whole = stack(parts)
    assert isinstance(whole, QuantizedWeight)
    check(coded(whole), whole, torch.bfloat16)


@pytest.mark.parametrize(
    "weight",
    [
        in_blocks("IQ4_NL"),
        replace(LAYOUTS["fp8 of blocks"][0], codes=torch.full((OUTPUTS, 384), 0x7F, dtype=torch.uint8)),
        replace(LAYOUTS["fp8 of blocks"][0], scales=torch.full((OUTPUTS, 3), 2.0**9)),
        replace(LAYOUTS["mxfp4"][0], scales=torch.full((OUTPUTS, 3), 8.0)),
        quantize(torch.randn(OUTPUTS, 96), GroupFormat(4, 24)),
        replace(LAYOUTS["awq"][0], scales=torch.rand(OUTPUTS, 3), offsets=torch.rand(OUTPUTS, 3)),
    ],
    ids=[
        "codebook",
        "NaN",
        "large scales",
        "large scales of four bits",
        "groups of 24",
        "products that are rounded twice",
    ],
)
def test_what_is_kept_as_numbers(weight: QuantizedWeight) -> None:
    """The kernel's numbers might be others, or slow to look up."""
    assert encode(Linear(weight), CPU) is None


def test_settled_products_have_one_hash() -> None:
    """No library multiplies by codes."""
    linear, x = coded(LAYOUTS["gptq"][0]), torch.randn(20, 288).bfloat16()
    multiplies = Products()
    hashed = multiplies.settle(linear, x, torch.float32)
    assert hashed == Products().settle(linear, x, torch.float32)
    assert not any(multiplies._library.values())
    assert torch.equal(multiplies(x[:5], linear, torch.float32), multiplies(x, linear, torch.float32)[:5])


def test_bytes_are_those_of_the_checkpoint() -> None:
    """Codes of 5 and 6 bits lie in bytes; factors of K-quants in bytes and two float16s."""
    for name, bits in {"gptq": 4.5, "mxfp4": 4.25, "fp8 by output": 8.25, "Q4_K": 4.625, "Q8_0": 8.5}.items():
        linear = coded(LAYOUTS[name][0])
        outputs, inputs = linear.weight.shape
        step = linear.codes.coding.step
        padded = -(-inputs // step) * step
        assert 8 * (linear.codes.words.nbytes + linear.codes.factors.nbytes) == pytest.approx(bits * outputs * padded)
