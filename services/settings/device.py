"""A check of the settings against the GPU of this machine, made before a server starts and without torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from services.errors import UsageError
from services.settings.settings import Settings

DRIVER = "libcuda.so.1"  # without it torch finds no CUDA device
ROCM = Path("/dev/kfd")  # what torch calls CUDA in its builds for AMD's GPUs


def check(settings: Settings, driver: str = DRIVER, rocm: Path = ROCM) -> None:
    """Raise UsageError for settings that need a GPU, if this machine has no driver of one. With a driver, the engine
    finds out whether there is a GPU."""
    needs_gpu = settings.device == "cuda" or settings.dtype == "float16"
    if not needs_gpu or settings.null_engine or rocm.exists() or _loads(driver):
        return
    if settings.device == "cuda":
        raise UsageError("device=cuda: this machine has no driver of CUDA; use device=cpu")
    raise UsageError("dtype=float16 is served on GPUs only, and this machine has no driver of one; use bfloat16")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
