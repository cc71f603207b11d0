"""Objects of request bodies: strict types, the exceptions to them, the refusal of unsupported fields, and content that
is a string or a list of text parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

NO_EFFORT = ("effort", "none")
MAX_ITEMS = 4096  # of a list or an object: each wrong item is an error, and all errors are written in one call
LONG_LISTS = frozenset({"prompt", "tokens", "allowed_token_ids"})  # token ids, read up to the first wrong one
MAX_DEPTH = 128  # levels of lists and objects; pydantic can write at most 255, Python read about 1,000


@dataclass(frozen=True, slots=True)
class TextParts:
    """Reads the text of content. `fields`: the field with the text, by the type of the part. `ignored`: fields without
    an effect on tokens. `noun`: what errors call a part. `unsupported`: the error for a part of type `{kind}`."""

    fields: dict[str, str]
    ignored: frozenset[str]
    noun: str = "part"
    unsupported: str = "has a part of type '{kind}'; this server takes text alone: leave the part out"

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


def variant(type: str) -> Tag:
    """Marks the variant of a union that has this `type`. Errors name the variant in their place, where a name like that
    of a field, such as `function` of a tool, could not be told from the field."""
    return Tag(f"<{type}>")


def by_type(*types: str) -> Discriminator:
    """Chooses the `variant` of a union of objects. An object without a type counts as one of the first type, which says
    that it is missing."""

    def chosen(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return f"<{types[0] if kind is None else kind}>"

    text = f"must have the type {' or '.join(map(repr, types))}"
    return Discriminator(chosen, custom_error_type="unknown_type", custom_error_message=text)


def only(*neutral: Any, instead: str = "") -> BeforeValidator:
    """An unsupported field that could change tokens: only null and its `neutral` values are accepted, as null.
    `instead`: the field that the server supports."""
    advice = f"use '{instead}'" if instead else "leave it out"

    def check(value: Any) -> None:
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            raise unsupported(f"is not supported by this server; {advice}")

    return BeforeValidator(check, Annotated[Any, WithJsonSchema({"enum": [None, *neutral]})])


def no_options(value: Any) -> None:
    """An object of unsupported options: only null options and an effort of "none" are accepted."""
    if isinstance(value, dict):
        value = {name: option for name, option in value.items() if option is not None and (name, option) != NO_EFFORT}
    if value:
        raise unsupported("is not supported by this server; leave it out")


def unsupported(text: str) -> PydanticCustomError:
    """The error for a value that is valid in the API but not supported by this server."""
    return PydanticCustomError("unsupported", "{text}", {"text": text})


def contradiction(param: str, text: str) -> PydanticCustomError:
    """The error of a validator of the whole object. `param`: the field to name."""
    return PydanticCustomError("contradiction", "{text}", {"text": text, "param": param})


class Strict(BaseModel):
    """An object of a request body.

    Types are strict and unknown fields are errors, with two exceptions: an unknown field that is null is dropped, and
    an integer field accepts a float without a fraction, because clients in other languages write `2.0`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _tolerate(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        integers, known = _integer_fields(cls), _known(cls)
        return {
            name: integral(field) if name in integers else field
            for name, field in value.items()
            if field is not None or name in known
        }


def too_deep(value: Any) -> bool:
    """Whether parsed JSON is nested more than `MAX_DEPTH` levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for parent in level for part in _members(parent) if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def too_long(value: dict[str, Any], token_ids: frozenset[str] = LONG_LISTS) -> str | None:
    """The error of a list or object in parsed JSON (not nested too deep) with more than `MAX_ITEMS` items; None if
    there is none. `token_ids`: members that may have more."""
    if len(value) > MAX_ITEMS:
        return f"An object has {len(value)} members; at most {MAX_ITEMS} are accepted."
    for name, part in value.items():
        if name not in token_ids and (count := _longest(part)) > MAX_ITEMS:
            return f"'{name[:64]}' has {count} items; at most {MAX_ITEMS} are accepted."
    return None


def _longest(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return max(len(value), max(map(_longest, _members(value)), default=0)) if len(value) <= MAX_ITEMS else len(value)


def _members(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


@cache
def _known(model: type[BaseModel]) -> frozenset[str]:
    """The names of the fields as clients write them."""
    return frozenset(str(field.validation_alias or name) for name, field in model.model_fields.items())


@cache
def _integer_fields(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, field in model.model_fields.items() if _names_int(field.annotation))


def _names_int(annotation: Any) -> bool:
    return annotation is int or any(map(_names_int, get_args(annotation)))


def integral(value: Any) -> Any:
    """A float without a fraction as an integer, also inside a list, unless it may have been rounded."""
    if isinstance(value, list):
        return [integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53 else value
