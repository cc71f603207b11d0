"""Reads the JSON files of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from services.errors import ModelError

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is no file. Raises ModelError for anything else."""
    return _read(path, dict, "an object")


def read_json_list(path: Path) -> list[Any] | None:
    """Return the list in a JSON file; None if there is no file. Raises ModelError for anything else."""
    return _read(path, list, "a list")


def _read(path: Path, kind: type[T], noun: str) -> T | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ModelError(f"{path} holds {type(value).__name__}, not {noun}")
    return value
