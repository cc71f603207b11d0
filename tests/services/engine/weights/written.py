"""Random quantized weights, written as each method writes them. Integers are packed one after the other, as the formats
define it; the numbers are computed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from writer import GROUP, Writer, Written, of_arrays
from written_floats import fp8, modelopt_blocks, mxfp4, mxfp8, nf4, nvfp4

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the nibbles of a word, from the lowest on


def pack(values: np.ndarray, bits: int, columns: tuple[int, ...] = ()) -> np.ndarray:
    """Integers [rows, columns] in words of 32 bits, a row after the other."""
    if 32 % bits:
        places = values.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8) & 1
        stream = places.reshape(len(values), -1)
        stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % (32 * bits))))
        return np.packbits(stream, axis=1, bitorder="little").view(np.int32)
    count = 32 // bits
    words = np.zeros((values.shape[0], -(-values.shape[1] // count)), np.uint32)
    for column in range(values.shape[1]):
        place = columns.index(column % count) if columns else column % count
        words[:, column // count] |= values[:, column].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def gptq(bits: int = 4, added: int = 1, act_order: bool = False, bias: bool = False) -> Writer:
    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        groups = inputs // GROUP
        codes = rng.integers(0, 1 << bits, (inputs, outputs))
        scales = _scales(rng, (groups, outputs), bits)
        zeros = rng.integers(0, 1 << bits, (groups, outputs))
        order = np.arange(inputs) // GROUP
        if act_order:
            rng.shuffle(order)
        numbers = np.stack([scales[g].astype(np.float64) * (codes[i] - zeros[g]) for i, g in enumerate(order)], axis=1)
        tensors = {
            "qweight": pack(codes.T, bits).T,
            "qzeros": _less(pack(zeros, bits), added, bits) if 32 % bits == 0 else pack(zeros - added & 7, bits),
            "scales": scales,
            "g_idx": order.astype(np.int32),
        }
        if bias:  # as AutoGPTQ writes it where the model has none
            tensors["bias"] = np.zeros(outputs, np.float16)
        return of_arrays(tensors, numbers)

    return write


def _less(words: np.ndarray, subtracted: int, bits: int) -> np.ndarray:
    """The words, with a number subtracted from each integer in them, as one subtraction for a word: GPTQModel does so.
    What an integer of 0 lacks is taken from the next one."""
    from_all = subtracted * sum(1 << place for place in range(0, 32, bits))
    return (words.view(np.uint32) - np.uint32(from_all)).view(np.int32)


def awq(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
    codes = rng.integers(0, 16, (inputs, outputs))
    scales = _scales(rng, (inputs // GROUP, outputs), 4)
    zeros = rng.integers(0, 16, (inputs // GROUP, outputs))
    numbers = np.repeat(scales, GROUP, 0).astype(np.float64) * (codes - np.repeat(zeros, GROUP, 0))
    return of_arrays(
        {"qweight": pack(codes, 4, AWQ_COLUMNS), "qzeros": pack(zeros, 4, AWQ_COLUMNS), "scales": scales}, numbers.T
    )


def packed(bits: int = 4, zeroed: bool = False, group: int = GROUP, act_order: bool = False) -> Writer:
    """compressed-tensors: integers from -2^(bits - 1) on, which it packs counted from there."""

    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        least, size = -(1 << bits - 1), group or inputs
        codes = rng.integers(least, -least, (outputs, inputs))
        scales = _scales(rng, (outputs, inputs // size), bits)
        zeros = rng.integers(least, -least, scales.shape) if zeroed else np.zeros(scales.shape, np.int64)
        order = np.arange(inputs) // size
        tensors = {"weight_packed": pack(codes - least, bits), "weight_scale": scales}
        tensors["weight_shape"] = np.array([outputs, inputs])
        if act_order:
            rng.shuffle(order)
            tensors["weight_g_idx"] = order.astype(np.int32)
        if zeroed:
            tensors["weight_zero_point"] = pack((zeros - least).T, bits).T
        return of_arrays(tensors, scales[:, order].astype(np.float64) * (codes - zeros[:, order]))

    return write


def in_bytes(bits: int = 8, zeroed: bool = False, group: int = 0) -> Writer:
    def write(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
        most = 1 << bits - 1
        codes = rng.integers(-most, most, (outputs, inputs)).astype(np.int8)
        scales = _scales(rng, (outputs, inputs // (group or inputs)), bits)
        zeros = rng.integers(-20, 20, (outputs, 1)).astype(np.int8)
        tensors = {"weight": codes, "weight_scale": scales}
        if zeroed:
            tensors["weight_zero_point"] = zeros
        shift = zeros if zeroed else np.zeros_like(zeros)
        factors = np.repeat(scales, group or inputs, 1).astype(np.float64)
        return of_arrays(tensors, factors * (codes.astype(np.float64) - shift))

    return write


def _scales(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """So that weights deviate by about 0.2."""
    return (rng.uniform(0.5, 1.0, shape) / (1 << bits)).astype(np.float16)


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", **weights}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


def _modelopt(algorithm: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head*"]}


def llm_int8(rng: np.random.Generator, outputs: int, inputs: int) -> Written:
    """bitsandbytes, with the largest size of each output's weights."""
    codes, most = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8), rng.uniform(0.3, 0.6, outputs)
    factors = (most.astype(np.float32) / np.float32(127)).astype(np.float64)
    tensors = {"weight": codes, "SCB": most.astype(np.float32), "weight_format": np.array(0, np.uint8)}
    return of_arrays(tensors, codes * factors[:, None])


BLOCK = (48, 48)  # it divides no size of the tiny model
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "GEMM"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float"}
# by a name: the `quantization_config`, and who writes a weight
WRITERS: dict[str, tuple[dict[str, Any], Writer]] = {
    "gptq": (GPTQ, gptq()),
    "gptq, zeros as they are": ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(added=0)),
    "gptq, act-order": ({**GPTQ, "desc_act": True}, gptq(act_order=True)),
    "gptq, biases of zeros": (GPTQ, gptq(bias=True)),
    "gptq, 8 bits": ({**GPTQ, "bits": 8}, gptq(bits=8)),
    "gptq, 2 bits": ({**GPTQ, "bits": 2}, gptq(bits=2)),
    "gptq, 3 bits": ({**GPTQ, "bits": 3}, gptq(bits=3)),
    "gptq, 3 bits, act-order": ({**GPTQ, "bits": 3}, gptq(bits=3, act_order=True)),
    "awq": (AWQ, awq),
    "fp8, one scale": ({"quant_method": "fp8"}, fp8("weight_scale", lambda *_: ())),
    "fp8, by output": ({"quant_method": "fbgemm_fp8"}, fp8("weight_scale", lambda outputs, _: (outputs, 1))),
    "fp8, blocks": (
        {"quant_method": "fp8", "weight_block_size": list(BLOCK)},
        fp8("weight_scale_inv", lambda outputs, inputs: (-(-outputs // BLOCK[0]), -(-inputs // BLOCK[1])), BLOCK),
    ),
    "compressed, 4 bits": (_compressed("pack-quantized"), packed()),
    "compressed, 4 bits by output": (_compressed("pack-quantized"), packed(group=0)),
    "compressed, 4 bits and zeros": (_compressed("pack-quantized", symmetric=False), packed(zeroed=True)),
    "compressed, act-order": (_compressed("pack-quantized", actorder="group"), packed(act_order=True)),
    "compressed, act-order before packing": (_compressed("pack-quantized", actorder="static"), packed()),
    "compressed, 8 bits packed": (_compressed("pack-quantized", num_bits=8), packed(bits=8)),
    "compressed, int8": (_compressed("int-quantized", num_bits=8), in_bytes()),
    "compressed, int8 and zeros": (_compressed("int-quantized", num_bits=8, symmetric=False), in_bytes(zeroed=True)),
    "compressed, 4 bits in bytes": (_compressed("int-quantized", group_size=GROUP), in_bytes(4, group=GROUP)),
    "compressed, fp8": (
        _compressed("float-quantized", **FLOAT8),
        fp8("weight_scale", lambda outputs, _: (outputs, 1)),
    ),
    "compressed, fp8 blocks": (
        _compressed("float-quantized", **FLOAT8, block_structure=list(BLOCK)),
        fp8("weight_scale", lambda outputs, inputs: (-(-outputs // BLOCK[0]), -(-inputs // BLOCK[1])), BLOCK),
    ),
    "compressed, nvfp4": (
        _compressed("nvfp4-pack-quantized", **FLOAT4, group_size=16),
        nvfp4("weight_packed", "weight_global_scale", divides=True),
    ),
    "compressed, mxfp4": (_compressed("mxfp4-pack-quantized", **FLOAT4, group_size=32), mxfp4),
    "modelopt, fp8": (_modelopt("FP8"), fp8("weight_scale", lambda *_: ())),
    "modelopt, fp8 by output": (
        _modelopt("FP8_PER_CHANNEL_PER_TOKEN"),
        fp8("weight_scale", lambda outputs, _: (outputs,)),
    ),
    "modelopt, fp8 blocks": (_modelopt("FP8_PB_WO"), modelopt_blocks),
    "modelopt, mxfp8": (_modelopt("MXFP8"), mxfp8),
    "bitsandbytes, nf4": (NF4, nf4()),
    "bitsandbytes, nf4, scales too": ({**NF4, "bnb_4bit_use_double_quant": True}, nf4(nested=True)),
    "bitsandbytes, int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8),
    "modelopt, nvfp4": (_modelopt("NVFP4"), nvfp4("weight", "weight_scale_2")),
}
