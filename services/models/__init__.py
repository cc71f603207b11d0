"""Finding, fetching and converting models. Importing this imports neither torch nor transformers."""

from services.models.info import ModelInfo
from services.models.resolve import resolve

__all__ = ["ModelInfo", "resolve"]
