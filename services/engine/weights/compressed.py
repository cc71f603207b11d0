"""compressed-tensors, as llm-compressor writes it: integers in words or in bytes, FP8, NVFP4 and MXFP4."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.weights.description import describe_integers
from services.engine.weights.floats import Block, paired, paired_groups, powers_of_two, scaled, scaled_groups
from services.engine.weights.format import Config, Format, Groups, Parts, field, grouped, groups_of, unpack
from services.engine.weights.quantized import Weight
from services.errors import ModelError

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
STATES = ("compressed", "frozen", None)  # the latter two of some checkpoints whose weights are compressed, too
PARTS = ("packed", "scale", "global_scale", "zero_point", "shape", "g_idx")
OTHERS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "k_scale", "v_scale", "q_scale")
WEIGHTS = (("int", 4), ("int", 8), ("float", 4), ("float", 8))  # types and bits


def compressed_tensors(config: Config) -> Format:
    """How compressed-tensors stores weights by this config. Raises ModelError for what is not served."""
    field(config, "format", FORMATS, None)
    field(config, "quantization_status", STATES, "compressed")
    if config.get("transform_config"):
        raise ModelError("compressed-tensors with transforms of activations (transform_config) is not served")
    if (config.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise ModelError("compressed-tensors with sparse weights (sparsity_config) is not served")
    weights = [group["weights"] for group in config["config_groups"].values() if group.get("weights")]
    for each in weights:
        if (each.get("type", "int"), each["num_bits"]) not in WEIGHTS:
            raise ModelError(
                f"compressed-tensors with {each.get('type', 'int')} weights of {each['num_bits']} bits is not served, "
                "only int and float weights of 4 or 8 bits"
            )
    blocks: set[Block] = {tuple(each["block_structure"]) for each in weights if each.get("block_structure")}
    if len(blocks) > 1:
        raise ModelError(f"compressed-tensors with blocks of several sizes is not served: {sorted(blocks)}")
    parts = (*(f".weight_{part}" for part in PARTS), *(f".{part}" for part in OTHERS))
    block = next(iter(blocks), None)
    read, groups = partial(_read, block), partial(_groups_of, block)
    return Format({".weight_scale": ".weight"}, parts, read, _method(config, weights), groups)


def _method(config: Config, weights: list[Config]) -> str:
    kinds = {(each.get("type", "int"), each["num_bits"], max(0, each.get("group_size") or 0)) for each in weights}
    kind, bits, group = kinds.pop()
    method = f"compressed-tensors {config['format']}"
    return f"{method}, {describe_integers(bits, group)}" if kind == "int" and not kinds else method


def _groups_of(block: Block | None, parts: Parts) -> Groups:
    """See Format. Integers of fewer than eight bits may be stored in bytes, too."""
    if _is_fp4(parts):
        return paired_groups(parts.shape("weight_packed"), parts.shape("weight_scale"))
    packed = "weight_shape" in parts
    if not packed and parts.tensor("weight", (0, 1)).dtype != torch.int8:
        return scaled_groups(parts.shape("weight")[1], parts.shape("weight_scale"), block)
    inputs = int(parts.tensor("weight_shape")[1]) if packed else parts.shape("weight")[1]
    bits = parts.shape("weight_packed")[1] * 32 // inputs if packed else 8
    scale = parts.shape("weight_scale")
    return groups_of(bits, inputs, scale[1] if len(scale) == 2 else 1, parts.optional("weight_g_idx"))


def _is_fp4(parts: Parts) -> bool:
    """Whether a module has floats of four bits. Of integers in words, the file has the shape."""
    return "weight_packed" in parts and "weight_shape" not in parts


def _read(block: Block | None, parts: Parts) -> Weight:
    if _is_fp4(parts):
        if "weight_zero_point" in parts:
            raise ModelError("compressed-tensors with float weights of 4 bits and zeros is not served")
        return paired(parts.tensor("weight_packed"), _fp4_scales(parts))
    scale = parts.tensor("weight_scale")
    packed = parts.optional("weight_packed")
    if packed is not None:
        return _packed(packed, scale, parts)
    weight = parts.tensor("weight")
    if weight.dtype != torch.int8:
        return scaled(weight, scale, block)
    zeros = parts.optional("weight_zero_point")
    middle = 128.0 if zeros is None else zeros.reshape(-1, _groups(scale)).to(torch.float32) + 128
    return grouped(weight.view(torch.uint8) ^ 128, _by_output(scale, len(weight)), middle, 8)


def _fp4_scales(parts: Parts) -> torch.Tensor:
    """The scales of floats of four bits. NVFP4's were multiplied by the global scale before rounding to e4m3."""
    scale = parts.tensor("weight_scale")
    if scale.dtype == torch.uint8:
        return powers_of_two(scale)
    return scale.to(torch.float32) / parts.tensor("weight_global_scale").to(torch.float32)


def _packed(packed: torch.Tensor, scale: torch.Tensor, parts: Parts) -> Weight:
    """Integers are packed along the inputs, zeros along the outputs, and both count from the least of their bits."""
    outputs, inputs = parts.tensor("weight_shape").tolist()
    bits = packed.shape[1] * 32 // inputs
    if bits not in (4, 8) or inputs * bits % 32:
        raise ModelError(f"{inputs} inputs packed into {packed.shape[1]} words are not served, only 4 or 8 bits each")
    zeros = parts.optional("weight_zero_point")
    middle = 1 << (bits - 1) if zeros is None else unpack(zeros.t(), bits).t()[:outputs].to(torch.float32)
    order = parts.optional("weight_g_idx")
    return grouped(unpack(packed, bits), _by_output(scale, outputs), middle, bits, order)


def _groups(scale: torch.Tensor) -> int:
    return scale.shape[1] if scale.ndim == 2 else 1


def _by_output(scale: torch.Tensor, outputs: int) -> torch.Tensor:
    """The scales [outputs, groups]."""
    return scale.reshape(-1, _groups(scale)).expand(outputs, -1)
