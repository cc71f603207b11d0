"""EngineSettings: how an engine is loaded. DeadlyToken: a fault for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.files import user_cache

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where and how the model runs; the defaults are those of `services.settings.settings.Settings`.

    `dtype` auto: bfloat16 on CUDA and on CPUs that multiply it faster, else float32. `weights` auto: as the checkpoint
    stores them where the backend can execute that, which changes no bit. int8: each output of a product has its own
    scale, and everything else is computed as with `dtype`; on the fast path only. `kv_cache_dtype` auto: `dtype`;
    int8_per_token_head: each key and value of a head has its own scale; on the fast path only.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["auto", "dtype", "int8"] = "auto"
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8_per_token_head"] = "auto"
    fast_path: bool = True  # False: transformers' own layers for every family
    fast_path_fault: str = ""  # why the fast path is not trusted here (see startup/proof); empty: it is trusted
    batch_invariant: bool = False  # bits depend on the request alone, on CUDA too; on the fast path only
    cache_dir: Path = field(default_factory=user_cache)  # where compiled kernels are kept
    block_size: int = 16  # tokens of one KV block
    kv_blocks: int = 0  # 0: as many as kv_memory_fraction of the free memory holds
    kv_memory_fraction: float = 0.25
    max_model_len: int = 0  # tokens; 0: the model's own limit
    threads: int = (
        0  # CPU threads of a rank; 0: all cores that this process may use, by its CPU limit too, shared by all ranks
    )
    tp: int = 1  # tensor-parallel ranks of each pipeline stage
    pp: int = 1  # pipeline stages
    deadly_token: int = NO_TOKEN  # see DeadlyToken
    null_iteration: float = 0.0  # seconds that an iteration of a null engine takes at least


class DeadlyToken:
    """A token id that kills the engine's process, so that a test can see what happens to the request that has it.

    Without one, a check costs one comparison.
    """

    __slots__ = ("id",)

    def __init__(self, id: int = NO_TOKEN) -> None:
        self.id = id

    def check(self, tokens: Container[int]) -> None:
        """Kill this process, as a crash would, if the deadly token is among `tokens`."""
        if self.id != NO_TOKEN and self.id in tokens:
            os.kill(os.getpid(), signal.SIGKILL)
