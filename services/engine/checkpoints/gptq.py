"""GPTQ, as AutoGPTQ and GPTQModel write it."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.checkpoints.format import Config, Format, Parts, field, grouped, unpack
from services.engine.families.kept import describe_integers
from services.engine.families.quantized import Weight
from services.errors import ModelError

STORED_ZEROS = {"gptq": 1, "gptq_v2": 0}  # what is added to the zeros in the file, by `checkpoint_format`


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
        partial(_read, bits, STORED_ZEROS[kind]),
        f"gptq, {describe_integers(bits, group)}{', act-order' * ordered}",
        None if ordered else (bits, group),
        "groups of act-order are not executed" * ordered,
    )


def _read(bits: int, added: int, parts: Parts) -> Weight:
    """Integers are packed along the inputs, zeros along the outputs."""
    codes = unpack(parts.tensor("qweight").t(), bits).contiguous()
    zeros = unpack(parts.tensor("qzeros"), bits).t()[: len(codes)].to(torch.float32) + added
    return grouped(codes, parts.tensor("scales").t(), zeros, bits, parts.optional("g_idx"))
