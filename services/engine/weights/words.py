"""Integers packed into words of 32 bits: GPTQ, as AutoGPTQ and GPTQModel write it, and AWQ, as AutoAWQ does."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.weights.description import describe_integers
from services.engine.weights.format import Config, Format, Groups, Parts, field, grouped, groups_of, unpack
from services.engine.weights.quantized import Weight
from services.errors import ModelError

GPTQ_BITS = (2, 3, 4, 8)
STORED_ZEROS = {"gptq": 1, "gptq_v2": 0}  # by how much less the file has than each zero, by `checkpoint_format`
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight neighbours in a word, from its lowest bits on


def gptq(config: Config) -> Format:
    """How GPTQ stores weights by this config. Raises ModelError for what is not served."""
    bits = field(config, "bits", GPTQ_BITS, None)
    kind = field(config, "checkpoint_format", tuple(STORED_ZEROS), "gptq")
    field(config, "pack_dtype", ("int32",), "int32")
    for modules, own in (config.get("dynamic") or {}).items():
        if (own or {}).get("bits", bits) not in GPTQ_BITS:
            raise ModelError(f"gptq with bits={own['bits']} for {modules} is not served, only bits 2, 3, 4 or 8")
    method = f"gptq, {describe_integers(bits, max(0, config.get('group_size', 0)))}"
    if config.get("desc_act"):
        method += ", act-order"
    if any((config.get("dynamic") or {}).values()):
        method += ", others by module"
    return Format(
        {".qweight": ".weight"},
        (".qweight", ".qzeros", ".scales", ".g_idx"),
        partial(_read_gptq, bits, STORED_ZEROS[kind]),
        method,
        partial(_gptq_groups, bits),
    )


def _read_gptq(bits: int, added: int, parts: Parts) -> Weight:
    """Integers are packed along the inputs, zeros along the outputs."""
    bits = _gptq_bits(bits, parts)
    codes = unpack(parts.tensor("qweight").t(), bits).contiguous()
    zeros = _gptq_zeros(parts.tensor("qzeros"), bits, added).t()[: len(codes)].to(torch.float32)
    return grouped(codes, parts.tensor("scales").t(), zeros, bits, parts.optional("g_idx"))


def _gptq_zeros(words: torch.Tensor, bits: int, added: int) -> torch.Tensor:
    """What the file's zeros lack is added as it was subtracted. That was to whole words, in which a zero of 0 has
    borrowed from the next one; but to each zero where some lie in two words."""
    if 32 % bits:
        return (unpack(words, bits) + added) % (1 << bits)
    return unpack(words + added * sum(1 << place for place in range(0, 32, bits)), bits)


def _gptq_groups(bits: int, parts: Parts) -> Groups:
    bits = _gptq_bits(bits, parts)
    inputs = parts.shape("qweight")[0] * 32 // bits
    return groups_of(bits, inputs, parts.shape("scales")[0], parts.optional("g_idx"))


def _gptq_bits(bits: int, parts: Parts) -> int:
    """The bits of a module's integers: `dynamic` may give it others than the config's."""
    order = parts.optional("g_idx")
    return bits if order is None else parts.shape("qweight")[0] * 32 // len(order)


def awq(config: Config) -> Format:
    """How AWQ stores weights by this config. Raises ModelError for what is not served."""
    bits = field(config, "bits", (4,), 4)
    # AutoAWQ's name of the field, and GPTQModel's
    version = str(config.get("version") or config.get("checkpoint_format") or "gemm").lower()
    field({**config, "version": version}, "version", ("gemm", "exllama", "ipex"), "gemm")  # all are stored as gemm
    field(config, "backend", ("autoawq",), "autoawq")
    method = f"awq, {describe_integers(bits, max(0, config.get('group_size', config.get('q_group_size', 0))))}"
    parts = (".qweight", ".qzeros", ".scales")
    return Format({".qweight": ".weight"}, parts, partial(_read_awq, bits), method, partial(_awq_groups, bits))


def _read_awq(bits: int, parts: Parts) -> Weight:
    """Integers and zeros are both packed along the outputs."""
    codes = unpack(parts.tensor("qweight"), bits, AWQ_ORDER).t().contiguous()
    zeros = unpack(parts.tensor("qzeros"), bits, AWQ_ORDER).t().to(torch.float32)
    return grouped(codes, parts.tensor("scales").t(), zeros, bits)


def _awq_groups(bits: int, parts: Parts) -> Groups:
    return groups_of(bits, parts.shape("qweight")[0], parts.shape("scales")[0], None)
