"""Content that is a string or a list of text parts, as the messages of all APIs have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.schemas.strict import unsupported


@dataclass(frozen=True, slots=True)
class TextParts:
    """Reads the text of content. `fields`: the field with the text, by the type of the part. `ignored`: fields without
    an effect on tokens. `noun`: what errors call a part. `unsupported`: the error for a part of type `{kind}`."""

    fields: dict[str, str]
    ignored: frozenset[str]
    noun: str = "part"
    unsupported: str = "has a part that is not text; this server takes text alone"

    def text(self, content: Any) -> str:
        """The string, or the texts of the parts joined. Raises ValueError, also for parts other than text."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise ValueError(f"must be a string or a list of text {self.noun}s")
        return "".join(map(self._text_of, content))

    def optional_text(self, content: Any) -> str | None:
        """The string, or the texts of the parts joined; None for null. Raises ValueError as `text` does."""
        return None if content is None else self.text(content)

    def _text_of(self, part: Any) -> str:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"has a {self.noun} that is not an object with a type")
        kind = part["type"]
        field = self.fields.get(kind)
        if field is None:
            raise unsupported(self.unsupported.replace("{kind}", kind[:64]))
        text = part.get(field)
        unknown = {name for name, value in part.items() if value is not None} - self.ignored - {"type", field}
        if unknown or not isinstance(text, str):
            raise ValueError(f"has a {kind} {self.noun} that is not {{'type': '{kind}', '{field}': string}}")
        return text
