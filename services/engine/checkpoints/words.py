"""Integers packed into words of 32 bits: GPTQ, as AutoGPTQ and GPTQModel write it, and AWQ, as AutoAWQ does."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.checkpoints.format import Config, Format, Parts, field, grouped, unpack
from services.engine.families.kept import describe_integers
from services.engine.families.quantized import Weight
from services.errors import ModelError

STORED_ZEROS = {"gptq": 1, "gptq_v2": 0}  # what is added to the zeros in the file, by `checkpoint_format`
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight neighbours in a word, from its lowest bits on


def gptq(config: Config) -> Format:
    """Raises ModelError for what is not served."""
    bits = field(config, "bits", (2, 4, 8), None)
    kind = field(config, "checkpoint_format", tuple(STORED_ZEROS), "gptq")
    field(config, "pack_dtype", ("int32",), "int32")
    for modules, own in (config.get("dynamic") or {}).items():
        if (own or {}).get("bits", bits) != bits:
            raise ModelError(f"gptq with several bits is not served: {bits}, but {own['bits']} for {modules}")
    group, ordered = max(0, config.get("group_size", 0)), bool(config.get("desc_act"))
    return Format(
        {".qweight": ".weight"},
        (".qweight", ".qzeros", ".scales", ".g_idx"),
        partial(_read_gptq, bits, STORED_ZEROS[kind]),
        f"gptq, {describe_integers(bits, group)}{', act-order' * ordered}",
        None if ordered else (bits, group),
        "groups of act-order are not executed" * ordered,
    )


def _read_gptq(bits: int, added: int, parts: Parts) -> Weight:
    """Integers are packed along the inputs, zeros along the outputs."""
    codes = unpack(parts.tensor("qweight").t(), bits).contiguous()
    zeros = unpack(parts.tensor("qzeros"), bits).t()[: len(codes)].to(torch.float32) + added
    return grouped(codes, parts.tensor("scales").t(), zeros, bits, parts.optional("g_idx"))


def awq(config: Config) -> Format:
    """Raises ModelError for what is not served."""
    bits = field(config, "bits", (4,), 4)
    version = str(config.get("version", "gemm")).lower()
    field({**config, "version": version}, "version", ("gemm", "exllama", "ipex"), "gemm")  # all are stored as gemm
    field(config, "backend", ("autoawq",), "autoawq")
    group = max(0, config.get("group_size", config.get("q_group_size", 0)))
    method = f"awq, {describe_integers(bits, group)}"
    parts = (".qweight", ".qzeros", ".scales")
    return Format({".qweight": ".weight"}, parts, partial(_read_awq, bits), method, (bits, group))


def _read_awq(bits: int, parts: Parts) -> Weight:
    """Integers and zeros are both packed along the outputs."""
    codes = unpack(parts.tensor("qweight"), bits, AWQ_ORDER).t().contiguous()
    zeros = unpack(parts.tensor("qzeros"), bits, AWQ_ORDER).t().to(torch.float32)
    return grouped(codes, parts.tensor("scales").t(), zeros, bits)
