"""All that loading an engine needs but the weights, so that a process that waits can load in a tenth of a second."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import services.engine.engine  # noqa: F401  what an engine runs with
from services.engine import placement
from services.engine.loading import lean_spec, load_config
from services.engine.native.build import NoKernels, kernels
from services.engine.settings import EngineSettings


def preload(folder: Path, settings: EngineSettings) -> None:
    """Import the code of the model in `folder`, by building it without memory for weights, and wake the device.

    transformers imports a family's code when it is first built: seconds, where its weights may take milliseconds.
    Raises ModelError for a model that is not served, SettingsError for a device that is absent.
    """
    device = placement.choose_device(settings)
    config = load_config(folder)
    if lean_spec(config, settings):
        with contextlib.suppress(NoKernels, ImportError):
            if device.type == "cpu":
                kernels(settings.cache_dir)
            else:
                importlib.import_module("services.engine.cuda.decoder")  # and Triton, where there is one
    with torch.device("meta"):
        AutoModelForCausalLM.from_config(config)
    torch.zeros(1, device=device)  # CUDA's context: the spare has it before it is needed
