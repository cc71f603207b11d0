"""GGUF's blocks as QuantizedWeights beside the numbers that the package gguf makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from services.engine.weights.gguf import FORMATS, read_blocks
from services.engine.weights.quantized import PIECE


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_are_the_numbers_of_the_package(kind: str) -> None:
    """Random bytes, but for the scales, which must be finite."""
    drawn = np.random.default_rng(1)
    type_ = gguf.GGMLQuantizationType[kind]
    numbers, size = gguf.GGML_QUANT_SIZES[type_]
    blocks = drawn.integers(0, 256, (10, 3, size), dtype=np.uint8)
    halves = {"Q6_K": [208]}.get(kind, [0] if kind.endswith("_0") else [0, 2])
    for at in halves:
        scales = drawn.standard_normal((10, 3, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    rows = blocks.reshape(10, -1)
    weight = read_blocks(kind, torch.from_numpy(rows))
    assert weight.shape == (10, 3 * numbers)
    assert int(weight.codes.max()) < 1 << weight.bits
    expected = torch.from_numpy(gguf.dequantize(rows, type_))
    assert torch.equal(weight.dequantize(torch.float32), expected)
    assert torch.equal(weight.dequantize(), expected.bfloat16())


@pytest.mark.parametrize("kind", ["Q4_1", "IQ4_NL"])
def test_a_large_weight_is_all_of_its_rows(kind: str) -> None:
    """It is widened some rows at a time, here three times, the last time fewer."""
    rows = np.random.default_rng(2).integers(0, 60, (2 * PIECE // 256 + 5, 8 * FORMATS[kind].block), dtype=np.uint8)
    expected = torch.from_numpy(gguf.dequantize(rows, gguf.GGMLQuantizationType[kind]))
    weight = read_blocks(kind, torch.from_numpy(rows))
    assert torch.equal(weight.dequantize(torch.float32), expected)
    assert torch.equal(weight.dequantize(), expected.bfloat16())
