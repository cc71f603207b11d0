"""EngineSettings: what an engine is told when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.files import user_cache


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where and how the model runs; the defaults are those of `services.settings.settings.Settings`.

    `dtype` auto: bfloat16 on CUDA and on CPUs that multiply it faster, else float32. `weights` int8: each output of a
    product has its own scale, the rest is computed as with `dtype`; on the lean path only.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["dtype", "int8"] = "dtype"
    lean: bool = True  # False: transformers' own layers for every family
    lean_fault: str = ""  # why the lean path is not to be trusted here (see `proof`); empty: it is
    batch_invariant: bool = False  # bits depend on the request alone, on CUDA too; on the lean path only
    cache_dir: Path = field(default_factory=user_cache)  # where compiled kernels are kept
    block_size: int = 16  # tokens of one KV block
    kv_blocks: int = 0  # 0: what kv_memory_fraction of the free memory holds
    kv_memory_fraction: float = 0.25
    max_model_len: int = 0  # tokens; 0: the model's own
    threads: int = 0  # CPU threads of a rank; 0: all cores this process may use, shared by all ranks
    tp: int = 1  # tensor-parallel ranks of each pipeline stage
    pp: int = 1  # pipeline stages
    deadly_token: int = -1  # an engine that is to compute this token id kills its process; to test faults; -1: none
