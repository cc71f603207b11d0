"""Which dtype `auto` is on a CPU, and how many tokens a block has."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from services.engine.engine import Engine
from services.engine.settings import EngineSettings, choose_block_size
from services.engine.startup import devices
from services.errors import SettingsError

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


def test_an_engine_computes_no_tf32(llama: Engine) -> None:
    assert llama.figures
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_gpu_that_cannot_be_used_is_named_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, taken = torch.device("cuda"), "CUDA error: all CUDA-capable devices are busy or unavailable\nStack"
    monkeypatch.setattr(torch, "zeros", Mock(side_effect=RuntimeError(taken)))
    with pytest.raises(SettingsError, match="busy or unavailable; see in nvidia-smi"):
        devices.open_device(cuda)
    monkeypatch.setattr(torch, "zeros", Mock())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(SettingsError, match=r"Tesla T4 has compute capability 7\.5.* 8\.0"):
        devices.open_device(cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    devices.open_device(cuda)
