"""Reads the JSON files of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.errors import ModelError


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no file. Raises ModelError for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, not an object")
    return value
