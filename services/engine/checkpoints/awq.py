"""AWQ, as AutoAWQ writes it: format `gemm`."""

from __future__ import annotations

from functools import partial

import torch

from services.engine.checkpoints.format import Config, Format, Parts, field, grouped, unpack
from services.engine.families.kept import describe_integers
from services.engine.families.quantized import Weight

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight neighbours in a word, from its lowest bits on


def awq(config: Config) -> Format:
    """Raises ModelError for what is not served."""
    bits = field(config, "bits", (4,), 4)
    version = str(config.get("version", "gemm")).lower()
    field({**config, "version": version}, "version", ("gemm", "exllama", "ipex"), "gemm")  # all are stored as gemm
    field(config, "backend", ("autoawq",), "autoawq")
    group = max(0, config.get("group_size", config.get("q_group_size", 0)))
    method = f"awq, {describe_integers(bits, group)}"
    parts = (".qweight", ".qzeros", ".scales")
    return Format({".qweight": ".weight"}, parts, partial(_read, bits), method, (bits, group))


def _read(bits: int, parts: Parts) -> Weight:
    """Integers and zeros are both packed along the outputs."""
    codes = unpack(parts.tensor("qweight"), bits, ORDER).t().contiguous()
    zeros = unpack(parts.tensor("qzeros"), bits, ORDER).t().to(torch.float32)
    return grouped(codes, parts.tensor("scales").t(), zeros, bits)
