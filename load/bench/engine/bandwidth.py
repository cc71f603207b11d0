"""Memory bandwidth: what reading and copying reach, from memory and not from cache."""

from __future__ import annotations

import torch

from load.bench.engine.caches import last_level_cache
from load.bench.engine.timing import device_seconds

CACHES = 4  # so many times what the last cache holds is read
CUDA_LEAST = 1 << 30  # bytes: less is over before all of a large GPU has begun


def measure_bandwidth(device: torch.device) -> dict[str, float]:
    """Bytes a second of each way to move a large tensor; a copy counts what is read and what is written."""
    columns = 2048
    size = max(CACHES * last_level_cache(device), CUDA_LEAST if device.type == "cuda" else 0)
    rows = size // (4 * columns)
    source = torch.ones(rows, columns, device=device)
    target = torch.empty_like(source)
    vector = torch.ones(columns, device=device)
    with torch.inference_mode():
        return {
            "copy": 2 * source.nbytes / device_seconds([lambda: target.copy_(source)], device).best,
            "sum": source.nbytes / device_seconds([source.sum], device).best,
            "matrix times vector": source.nbytes / device_seconds([lambda: torch.mv(source, vector)], device).best,
        }
