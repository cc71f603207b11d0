"""On which device and in which dtype the model runs."""

from __future__ import annotations

import os

import torch

from services.engine.backends.cpu.cpuinfo import cpuinfo
from services.engine.settings import EngineSettings
from services.errors import SettingsError


def choose_device(settings: EngineSettings) -> torch.device:
    """The device asked for; `auto` is CUDA where there is one. Raises SettingsError where it is absent."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device=cuda, but torch finds no CUDA device")
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def choose_dtype(settings: EngineSettings, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations. Raises SettingsError for float16 on a CPU."""
    if settings.dtype == "float16" and device.type == "cpu":
        raise SettingsError("dtype=float16 is not served on device=cpu; use bfloat16 or float32")
    if settings.dtype != "auto":
        dtype: torch.dtype = getattr(torch, settings.dtype)
        return dtype
    return torch.bfloat16 if device.type == "cuda" or _cpu_prefers_bfloat16() else torch.float32


def set_threads(settings: EngineSettings) -> None:
    """Ray and OpenMP may have set one thread; 0 means every core this process may run on, shared by all ranks."""
    cores = len(os.sched_getaffinity(0)) // (settings.tp * settings.pp)
    torch.set_num_threads(settings.threads or max(1, cores))


def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has AVX512-BF16 or AMX; elsewhere bfloat16 is converted and slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cpu_prefers_bfloat16() -> bool:
    """With AMX, and with AVX512-BF16 on AMD's; on Intel's its products take more than twice as long as float32's."""
    if torch.cpu._is_avx512_bf16_supported() and "AuthenticAMD" in cpuinfo():
        return True
    return bool(torch.cpu._is_amx_tile_supported())
