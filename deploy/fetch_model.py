"""Downloads the model of the settings (`ORCA_MODEL`), and the tokenizer if that is another's (`ORCA_TOKENIZER`), into
the cache (`ORCA_CACHE_DIR`), so that no server has to."""

from __future__ import annotations

from actors.engine_build import replaced_of
from services.models.replaced import resolve_replaced
from services.settings.sources import load

settings = load()
print(resolve_replaced(settings.model, replaced_of(settings), settings.cache_dir, print))
