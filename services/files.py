"""Where a user's files are (the XDG base directories)."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    return _folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    return _folder("XDG_DATA_HOME", ".local/share")


def _folder(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "orca"
