"""Puts the model of the settings (`ORCA_MODEL`, `ORCA_CACHE_DIR`) into the cache, so that no server has to fetch it."""

from __future__ import annotations

from services.models import resolve
from services.settings.sources import load

settings = load()
print(resolve(settings.model, settings.cache_dir, print))
