"""Which dtype `auto` is on a CPU, and how many tokens a block has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine
from services.engine.settings import EngineSettings, choose_block_size
from services.engine.startup import devices, loading
from services.engine.startup.shared_memory import SharedMemory
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


TOO_LARGE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.99 GiB"


@pytest.mark.parametrize(
    ("taken", "says"), [(0.4, r"which has 8\.0 GiB: CUDA"), (5.5, r"of which other .* taken 5\.5")]
)
def test_a_gpu_that_is_too_small_is_named_in_a_sentence(
    taken: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int((8 - taken) * 2**30), 8 * 2**30))
    with pytest.raises(SettingsError, match=says) as raised, devices.fitting(cuda):
        raise torch.OutOfMemoryError(TOO_LARGE)
    assert "NVIDIA L4" in str(raised.value)
    with pytest.raises(SettingsError, match="CUBLAS_STATUS_ALLOC_FAILED"), devices.fitting(cuda):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    with pytest.raises(RuntimeError, match="illegal"), devices.fitting(cuda):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "\n" not in str(raised.value)
    with pytest.raises(SettingsError, match=r"kv_blocks=5 take 5\.0 GiB, and 3\.0 GiB of cuda"):
        devices.count_blocks(EngineSettings(kv_blocks=5), 2**30, 16, 100, 3 * 2**30, cuda)
    assert devices.count_blocks(EngineSettings(kv_blocks=5), 2**30, 16, 100, 0, torch.device("cpu")) == 5


def test_a_gpu_gives_more_of_its_memory_to_blocks() -> None:
    one, free = EngineSettings(), 1000 * 2**20
    assert devices.count_blocks(one, 2**20, 16, 1000, free, torch.device("cuda")) == 900
    assert devices.count_blocks(one, 2**20, 16, 1000, free, torch.device("cpu")) == 250
    given = EngineSettings(kv_memory_fraction=0.5)
    assert devices.count_blocks(given, 2**20, 16, 1000, free, torch.device("cuda")) == 500


@pytest.mark.parametrize(
    ("set", "kept"),
    [
        ({}, "/cache/kernels/triton"),
        ({"TRITON_CACHE_DIR": "/mine"}, "/mine"),
        ({"TRITON_HOME": "/home"}, None),
    ],
)
def test_triton_keeps_kernels_in_our_cache(
    set: dict[str, str], kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no home folder, or one that is read-only."""
    monkeypatch.setattr(devices.os, "environ", dict(set))
    devices.keep_kernels(Path("/cache"))
    assert devices.os.environ.get("TRITON_CACHE_DIR") == kept


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_model_takes_is_not_said_to_be_others(
    shared: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's memory is looked at before the weights are there, and may be short until the graphs are."""
    done: list[str] = []

    @contextmanager
    def fitting(device: torch.device) -> Iterator[None]:
        done.append("looked")
        yield
        done.append("fits")

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (done.append(name), call(*given, **named))[1]

    monkeypatch.setattr(devices, "fitting", fitting)
    monkeypatch.setattr(loading, "load_decoder", noted("weights", loading.load_decoder))
    monkeypatch.setattr(CpuDecoder, "bind", noted("bound", CpuDecoder.bind))
    settings = EngineSettings("cpu", "float32", kv_blocks=3, threads=1)
    memory = SharedMemory() if shared else None
    assert Engine.load(tiny_model("llama"), settings, memory=memory)
    assert done == ["looked", "weights", "bound", "fits"]
