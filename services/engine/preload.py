"""Loads everything an engine needs except its weights, so that a waiting process can load these in a tenth of a
second."""

from __future__ import annotations

import importlib
from pathlib import Path

from services.engine.families.fit import load_fit
from services.engine.settings import EngineSettings
from services.engine.startup import devices
from services.engine.startup.loading import check_ranks, fast_path_spec, runs_on_fast_path
from services.engine.startup.proof.ahead import make_what_is_not_kept
from services.engine.startup.proof.verdict import proven


def preload(folder: Path, settings: EngineSettings) -> EngineSettings:
    """Import the code of the model in `folder` and initialise the device. Returns the settings to load it with, see
    `proven`.

    Raises ModelError for a model that is not served or whose weights do not fit its config, SettingsError for a device
    that is absent, and for ranks if the fast path is not trusted.
    """
    importlib.import_module("services.engine.engine")
    device = devices.choose_device(settings)
    make_what_is_not_kept(folder, settings)
    if (spec := fast_path_spec(folder, settings)) and not spec.both_ways:
        # not when they are loaded: a spare that takes over must not wait for it
        load_fit(folder, settings.cache_dir)
    settings = proven(folder, settings)
    if settings.tp * settings.pp > 1:
        check_ranks(folder, settings)
    if not runs_on_fast_path(folder, settings):
        from services.engine.backends.stock.loading import import_family

        import_family(folder)
    devices.open_device(device)
    return settings
