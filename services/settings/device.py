"""What the settings mean for the GPU of this machine, found out before a server starts and without torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from services.errors import UsageError
from services.settings.settings import Settings

DRIVER = "libcuda.so.1"  # without it torch finds no CUDA device
ROCM = Path("/dev/kfd")  # what torch calls CUDA in its builds for AMD's GPUs


def check(settings: Settings, driver: str = DRIVER, rocm: Path = ROCM) -> None:
    """Raise UsageError for settings of a model that need a GPU, if this machine has no driver of one. With a driver,
    the engine finds out whether there is a GPU."""
    for each in settings.each:
        _check_driver(each, driver, rocm)


def _check_driver(settings: Settings, driver: str, rocm: Path) -> None:
    needs_gpu = settings.device == "cuda" or settings.dtype == "float16"
    if not needs_gpu or settings.null_engine or _has_driver(driver, rocm):
        return
    if settings.device == "cuda":
        raise UsageError("device=cuda: this machine has no driver of CUDA; use device=cpu")
    raise UsageError("dtype=float16 is served on GPUs only, and this machine has no driver of one; use bfloat16")


def expects_gpu(settings: Settings, driver: str = DRIVER, rocm: Path = ROCM) -> bool:
    """Whether engines will probably run on a GPU: because of the setting, or because this machine has a driver."""
    return settings.device == "cuda" or (settings.device == "auto" and _has_driver(driver, rocm))


def _has_driver(driver: str, rocm: Path) -> bool:
    if rocm.exists():
        return True
    try:
        ctypes.CDLL(driver)
    except OSError:
        return False
    return True
