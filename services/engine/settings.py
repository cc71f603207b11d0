"""EngineSettings: how an engine is loaded. `check_deadly`: a fault for tests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from services.files import user_cache
from services.models.info import ModelInfo
from services.requests import FEATURES, OF_ADAPTERS, OF_VECTORS

NO_TOKEN = -1

BLOCK_SIZE = 16  # tokens
# Of models whose layers keep a state. A request that continues computes less than a block again, and a prefix is shared
# by whole blocks, so blocks should not be larger than memory makes them. Gated delta rules run in steps of 64 tokens.
STATE_STEP = 64
LARGEST_BLOCK = 512
WARM_UP_TOKENS = 16

# The largest iteration of a GPU, for which memory is kept (see `startup.rehearsal`). A vector's prompt may be longer.
MOST_REQUESTS = 256
MOST_ROWS = 512  # tokens after which one is sampled: of requests, and of their drafts
MOST_TOKENS = 8192
PROCESSES = 1 << 30  # bytes that the processes of a rank take at most beside weights and KV blocks: code and buffers
CPU_SHARE, GPU_SHARE = 0.25, 0.9  # of the free memory, for KV blocks; a CPU's other processes need the rest


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
    batch_invariant: bool = False  # refuse what is not served on the fast path, whose bits depend on the request alone
    cache_dir: Path = field(default_factory=user_cache)  # where compiled kernels are kept
    block_size: int = 0  # tokens of one KV block; 0: see `choose_block_size`
    kv_blocks: int = 0  # 0: as many as kv_memory_fraction of the free memory holds
    kv_memory_fraction: float = 0.0  # 0: CPU_SHARE or GPU_SHARE
    memory: int = 0  # bytes of all engines of the machine, on CPUs; 0: what is free
    max_model_len: int = 0  # tokens; 0: the model's own limit
    threads: int = (
        0  # CPU threads of a rank; 0: all cores that this process may use, by its CPU limit too, shared by all ranks
    )
    tp: int = 1  # tensor-parallel ranks of each pipeline stage
    pp: int = 1  # pipeline stages
    deadly_token: int = NO_TOKEN  # see `check_deadly`
    adapters: Path | None = None  # the files folder, which has them (`services.adapters.store`); None: none are served
    max_lora_rank: int = 256  # of an adapter
    adapter_bytes: int = 1 << 30  # of adapters in memory; there are more only while requests have them
    null_iteration: float = 0.0  # seconds that an iteration of a null engine takes at least

    @property
    def beside_model(self) -> int:
        """Bytes that all ranks take at most beside the weights of the model and KV blocks."""
        return self.tp * self.pp * PROCESSES + (self.adapter_bytes if self.adapters else 0)

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, written: str) -> EngineSettings:
        """What `to_json` wrote."""
        values = json.loads(written)
        return cls(**values | {"cache_dir": Path(values["cache_dir"])})


def choose_block_size(settings: EngineSettings, bytes_per_token: int = 0, state_bytes: int = 0) -> int:
    """`block_size`, or what suits a model that keeps so many bytes of keys and values for a token, and so many of
    states for a block: then states take no more memory than keys and values, unless this takes more than LARGEST_BLOCK.
    """
    if settings.block_size or not state_bytes:
        return settings.block_size or BLOCK_SIZE
    tokens = -(-state_bytes // bytes_per_token) if bytes_per_token else LARGEST_BLOCK
    return min(max(-(-tokens // STATE_STEP) * STATE_STEP, STATE_STEP), LARGEST_BLOCK)


def count_warm_up_blocks(block_size: int) -> int:
    """The number of KV blocks that the engine keeps for its warm-up (see `warm_up`)."""
    return -(-WARM_UP_TOKENS // block_size)


def features_of(model: ModelInfo, adapters: bool = False) -> tuple[str, ...]:
    """The features that requests may need of an engine of this model, which computes `adapters` or not."""
    lacks = (frozenset() if adapters else OF_ADAPTERS) | (frozenset() if model.pooling else OF_VECTORS)
    return tuple(name for name in FEATURES if name not in lacks)


def check_deadly(id: int, tokens: Container[int]) -> None:
    """Kill this process, as a crash would, if the token `id` is among `tokens`, so that a test can see what happens to
    the request that has it. NO_TOKEN kills none."""
    if id != NO_TOKEN and id in tokens:
        os.kill(os.getpid(), signal.SIGKILL)
