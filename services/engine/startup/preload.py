"""All that loading an engine needs but the weights, so that a process that waits can load in a tenth of a second."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from services.engine.backends.cpu.build import NoKernels
from services.engine.settings import EngineSettings
from services.engine.startup import devices
from services.engine.startup.loading import check_ranks, lean_spec, need_kernels
from services.engine.startup.proof.verdict import proven


def preload(folder: Path, settings: EngineSettings) -> EngineSettings:
    """Import the code of the model in `folder` and wake the device. Returns the settings to load it with, see `proven`.

    Raises ModelError for a model that is not served, SettingsError for a device that is absent, and for ranks where
    the lean path is not to be trusted.
    """
    importlib.import_module("services.engine.engine")  # what an engine runs with
    device = devices.choose_device(settings)
    settings = proven(folder, settings)
    if settings.tp * settings.pp > 1:
        check_ranks(folder, settings)
    if not (lean_spec(folder, settings) and _import_lean(device, settings)):
        from services.engine.backends.stock.loading import import_family

        import_family(folder)
    torch.zeros(1, device=device)  # CUDA's context: the spare has it before it is needed
    return settings


def _import_lean(device: torch.device, settings: EngineSettings) -> bool:
    """Whether the lean path runs here."""
    try:
        need_kernels(settings, device)
    except NoKernels:
        return False
    return True
