"""bitsandbytes, as transformers saves its models: NF4 in blocks, with scales that may be quantized too, and LLM.int8
with a scale for each output."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from services.engine.weights.format import Config, Format, Groups, Parts, field, grouped
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values, Weight
from services.errors import ModelError

STATE = "weight.quant_state.bitsandbytes__nf4"  # JSON in bytes
INT8_PARTS = (".SCB", ".weight_format")
PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", "quant_state.bitsandbytes__nf4")
MOST = 127  # the integer of a scale of LLM.int8, which is the largest size of an output's weights


def bitsandbytes(config: Config) -> Format:
    """How bitsandbytes stores weights by this config. Raises ModelError for what is not served."""
    if config.get("load_in_8bit"):
        return Format({".SCB": ".weight"}, INT8_PARTS, _read_int8, "bitsandbytes, int8", _int8_groups)
    field(config, "bnb_4bit_quant_type", ("nf4",), "fp4")
    parts = tuple(f".weight.{part}" for part in PARTS)
    return Format({f".{STATE}": ".weight"}, parts, _read_nf4, "bitsandbytes, nf4", _nf4_groups)


def _read_int8(parts: Parts) -> Weight:
    weight, scale = parts.tensor("weight"), parts.tensor("SCB")
    if weight.dtype != torch.int8:
        raise ModelError(f"bitsandbytes with int8 weights in {weight.dtype} is not served, only in torch.int8")
    return grouped(weight.view(torch.uint8) ^ 128, scale.to(torch.float32).view(-1, 1) / MOST, 128.0, 8)


def _int8_groups(parts: Parts) -> Groups:
    return GroupFormat(8, parts.shape("weight")[1])


def _read_nf4(parts: Parts) -> Weight:
    """The file has the blocks of all rows one after the other, two codes in a byte, with its upper half first. Blocks
    that reach into the next row are read as numbers."""
    state = _state(parts)
    (outputs, inputs), size = state["shape"], state["blocksize"]
    book = parts.tensor("weight.quant_map")
    if not torch.equal(book.to(torch.float32), torch.tensor(Values.NF4.book)):
        raise ModelError("bitsandbytes with another quant_map than that of nf4 is not served")
    if outputs * inputs % size:
        raise ModelError(f"bitsandbytes with {outputs} x {inputs} weights in blocks of {size} is not served")
    packed = parts.tensor("weight").view(torch.uint8).flatten()
    codes = torch.stack([packed >> 4, packed & 15], dim=-1)
    scales = _scales(parts, state)
    if inputs % size:
        blocks = QuantizedWeight.of_values(codes.view(-1, size), scales.view(-1, 1), size, Values.NF4)
        return blocks.dequantize().view(outputs, inputs)
    return QuantizedWeight.of_values(codes.view(outputs, inputs), scales.view(outputs, -1), size, Values.NF4)


def _nf4_groups(parts: Parts) -> Groups:
    state = _state(parts)
    inputs, size = state["shape"][1], state["blocksize"]
    return f"blocks of {size} reach into the next row" if inputs % size else GroupFormat(4, size, Values.NF4)


def _state(parts: Parts) -> Any:
    return json.loads(bytes(parts.tensor(STATE).tolist()))


def _scales(parts: Parts, state: Any) -> torch.Tensor:
    """The scale of each block. With double quantization scales are codes with scales themselves."""
    stored = parts.tensor("weight.absmax")
    if "nested_blocksize" not in state:
        return stored.to(torch.float32)
    numbers = parts.tensor("weight.nested_quant_map")[stored.to(torch.int32)]
    size, nested = state["nested_blocksize"], parts.tensor("weight.nested_absmax")
    assert len(nested) == math.ceil(len(numbers) / size), (len(nested), len(numbers))
    offset = float(state["nested_offset"])
    return numbers * nested.repeat_interleave(size)[: len(numbers)] + offset
