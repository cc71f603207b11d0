"""Downloads the model of the settings (`ORCA_MODEL`) into the cache (`ORCA_CACHE_DIR`), so that no server has to."""

from __future__ import annotations

from services.models import resolve
from services.settings.sources import load

settings = load()
print(resolve(settings.model, settings.cache_dir, print))
