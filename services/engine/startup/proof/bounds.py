"""How far the lean path may be from transformers' own layers.

Logits of two random layers, each difference in units of the root mean square of its row. Measured on a CPU with
AVX512-BF16, over llama, qwen2, qwen3, mistral and gpt2 of hidden size 64 and SmolLM2-135M of 576, with blocks of 5, 16
and 32 tokens: float32 2e-6 to 1e-5 (sums in another order), bfloat16 0.02 to 0.05 (a rounding is 2**-9, twice for each
product), int8 0.07 to 0.17. Unrelated logits are 4 or more apart. A bound is three times the largest of these and more
where it grows with the length of sums: that of float32 by its square root, 7 for a hidden size of 28,672.
"""

from __future__ import annotations

import torch

from services.engine.settings import EngineSettings

# float16 rounds eight times finer than bfloat16; it has run on no device here, so it has room for another factor of two
BOUNDS = {torch.float32: 2e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
INT8 = 0.5


def bound_of(settings: EngineSettings, dtype: torch.dtype) -> float:
    """The largest difference at which the lean path serves."""
    return INT8 if settings.weights == "int8" else BOUNDS[dtype]
