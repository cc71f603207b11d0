"""TokenizerConfig: the class, special tokens and chat templates in a model's tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from services.errors import ModelError

DEFAULT_CLASS = "PreTrainedTokenizerFast"  # what transformers uses if only tokenizer.json is there


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """`named_tokens`: `bos_token`, `eos_token` etc. as text. `chat_template`: the source of the template, or None.
    `template_file`: where it is. `tool_template`: the source of the one for requests with tools, if the model has
    two."""

    tokenizer_class: str
    named_tokens: dict[str, str]
    chat_template: str | None
    template_file: Path
    tool_template: str | None = None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the config of the model in `folder`. A missing file counts as empty. Raises ModelError if a file is not
        JSON.

        chat_template.jinja takes precedence over the templates in tokenizer_config.json.
        """
        config = _read_json(folder / "tokenizer_config.json")
        file, template = folder / "chat_template.jinja", config.get("chat_template")
        written = file.exists()
        return cls(
            str(config.get("tokenizer_class") or DEFAULT_CLASS),
            _named_tokens(_read_json(folder / "special_tokens_map.json") | config),
            file.read_text(encoding="utf-8") if written else _template_of(template, "default"),
            file if written else folder / "tokenizer_config.json",
            None if written or isinstance(template, str) else _template_of(template, "tool_use"),
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _template_of(template: Any, name: str) -> str | None:
    """Return the template, which is a string, or the one with this name in a list of templates."""
    if isinstance(template, list):
        return next((t["template"] for t in template if t["name"] == name), None)
    return template if isinstance(template, str) else None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {key: value for key, value in config.items() if key.endswith("_token") and value}
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}
