"""What an engine on a CPU takes of the memory, computed before it loads."""

from __future__ import annotations

import contextlib
from pathlib import Path

from services.engine.batch.block_names import BYTES
from services.engine.parallel.decoder import shapes
from services.engine.settings import CPU_SHARE, EngineSettings, choose_block_size
from services.engine.startup import devices, loading
from services.errors import ModelError, SettingsError
from services.models.info import ModelInfo, choose_length
from services.models.weights_size import weights_size

GIB = 1 << 30


def needed(folder: Path, settings: EngineSettings, memory: int) -> int:
    """Bytes that all ranks of the engine of the model in `folder` take, of the `memory` of all engines: weights, KV
    blocks and processes. What is not known of a model that transformers' own layers run is counted when it is loaded.

    Raises ModelError if the settings bound the memory, and the model does not fit even alone.
    """
    device = devices.choose_device(settings)
    dtype = devices.choose_dtype(settings, device)
    weights = weights_size(folder, 1 if settings.weights == "int8" else int(dtype.itemsize))
    fixed = weights + settings.beside_model
    length = choose_length(ModelInfo.load(folder, settings.cache_dir).max_model_len, settings.max_model_len)
    spec = loading.fast_path_spec(folder, settings)
    kept = shapes(spec, 0, spec.layers) if spec and not spec.both_ways else []
    per_token = sum(layer.bytes(devices.choose_cache_dtype(settings, dtype)) for layer in kept)
    size = choose_block_size(settings)
    block, share = max(BYTES, size * per_token), settings.kv_memory_fraction or CPU_SHARE
    least = fixed + (settings.kv_blocks * block or int(block / share))
    if settings.memory and least > settings.memory:
        raise ModelError(
            f"memory={settings.memory / GIB:.2f} GiB: an engine of {folder.name} takes {least / GIB:.2f} GiB alone, "
            f"{weights / GIB:.2f} for weights, {settings.beside_model / GIB:.2f} for processes, the rest for KV blocks"
            "; raise memory, or use a smaller model, weights=int8 or fewer kv_blocks"
        )
    free = (settings.memory or memory) - fixed
    if spec is None and not settings.kv_blocks:
        return fixed + int(max(0, free) * share)
    with contextlib.suppress(SettingsError):  # no block fits, which the engine says when it counts them
        return fixed + block * devices.count_blocks(settings, block, size, length, free, device)
    return fixed
