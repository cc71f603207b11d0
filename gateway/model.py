"""The model that this gateway answers for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from services.models import ModelInfo
from services.text import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's name in the API, its text side and its figures; `created` is in Unix seconds."""

    name: str
    tokenizer: Tokenizer
    info: ModelInfo
    created: int

    def card(self) -> dict[str, Any]:
        """The model object of OpenAI and of Anthropic, whose fields do not clash; `max_model_len` is vLLM's."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "orca",
            "max_model_len": self.info.max_model_len,
            "type": "model",
            "display_name": self.name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat(),
            "lifecycle": "active",
        }
