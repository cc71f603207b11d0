"""Finds, fetches and converts models. Importing this package imports neither torch nor transformers."""

from services.models.info import ModelInfo
from services.models.resolve import resolve

__all__ = ["ModelInfo", "resolve"]
