"""Which dtype `auto` is on a CPU, and how many tokens a block has."""

from __future__ import annotations

import pytest
import torch

from services.engine.settings import EngineSettings, choose_block_size
from services.engine.startup import devices

INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"


@pytest.mark.parametrize(
    ("vendor", "vectors", "tiles", "dtype"),
    [
        (INTEL, True, True, torch.bfloat16),
        (INTEL, True, False, torch.float32),
        (INTEL, False, False, torch.float32),
        (AMD, True, False, torch.bfloat16),
        (AMD, False, False, torch.float32),
        ("", True, False, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_that_is_faster(
    vendor: str, vectors: bool, tiles: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpuinfo", lambda: vendor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: vectors)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    assert devices.choose_dtype(EngineSettings(), torch.device("cpu")) == dtype
    assert devices.choose_dtype(EngineSettings(dtype="bfloat16"), torch.device("cpu")) == torch.bfloat16
    assert devices.choose_dtype(EngineSettings(), torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(
    ("asked", "per_token", "states", "tokens"),
    [
        (0, 1000, 0, 16),
        (4, 1000, 1_000_000, 4),
        (0, 24_576, 123_000, 64),
        (0, 10_000, 1_000_001, 128),
        (0, 24_576, 20_000_000, 512),
        (0, 0, 1000, 512),
    ],
)
def test_states_take_no_more_memory_than_keys_and_values(asked: int, per_token: int, states: int, tokens: int) -> None:
    """Up to 512 tokens."""
    assert choose_block_size(EngineSettings(block_size=asked), per_token, states) == tokens
