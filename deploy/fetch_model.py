"""Downloads the model of the settings (`ORCA_MODEL`) into the cache (`ORCA_CACHE_DIR`), so that no server has to."""

from __future__ import annotations

from services.config import load
from services.models import resolve

settings = load()
print(resolve(settings.model, settings.cache_dir, print))
