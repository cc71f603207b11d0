"""How many KV blocks fit."""

from __future__ import annotations

from pathlib import Path

import torch

from services.engine.settings import EngineSettings
from services.errors import SettingsError


def count_blocks(settings: EngineSettings, bytes_per_block: int, max_model_len: int, free: int) -> int:
    """`kv_blocks`, or floor(free bytes * kv_memory_fraction / bytes_per_block), with the weights already loaded.

    `bytes_per_block` is what all keep of a block that have `free` bytes together: so each takes its share, and all have
    as many blocks. Raises SettingsError where not one fits. No more than 4,096 requests of the model's length are held.
    """
    if settings.kv_blocks:
        return settings.kv_blocks
    fitting = int(free * settings.kv_memory_fraction) // bytes_per_block
    if fitting < 1:
        raise SettingsError(
            f"kv_memory_fraction={settings.kv_memory_fraction} of {free} free bytes "
            f"holds no KV block of {bytes_per_block} bytes"
        )
    return min(fitting, 4096 * -(-max_model_len // settings.block_size))


def free_bytes(device: torch.device) -> int:
    """Free memory of the device; on a CPU what the machine and this process's control group leave."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available(), _left_in_group())


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no MemAvailable in /proc/meminfo")


def _left_in_group() -> int:
    """Bytes below the limit of the control group (version 2, as a container sees it)."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - used)
