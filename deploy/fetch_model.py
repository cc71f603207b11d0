"""Downloads the models of the settings (`ORCA_MODEL` or `ORCA_MODELS`), and the tokenizer of each if that is another's,
into the cache (`ORCA_CACHE_DIR`), so that no server has to."""

from __future__ import annotations

from actors.engine_build import replaced_of
from services.models.replaced import resolve_replaced
from services.settings.sources import load

for settings in load().each:
    print(resolve_replaced(settings.model, replaced_of(settings), settings.cache_dir, print))
