"""How much of a device's memory its last cache holds."""

from __future__ import annotations

from pathlib import Path

import torch

UNKNOWN = 64 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_cache(device: torch.device) -> int:
    """Bytes; 64 MiB where the machine does not say."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [_bytes(file.read_text().strip()) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")]
    return max(sizes, default=UNKNOWN)


def _bytes(text: str) -> int:
    """Of "36608K"."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)
