"""Objects of request bodies: strict types, the exceptions to them, and the refusal of unsupported fields."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

NO_EFFORT = ("effort", "none")
MAX_DEPTH = 128  # levels of lists and objects; pydantic can write at most 255, Python read about 1,000


def only(*neutral: Any) -> BeforeValidator:
    """An unsupported field that could change tokens: only null and its `neutral` values are accepted, as null."""

    def check(value: Any) -> None:
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            raise unsupported("is not supported by this server; leave it out")

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
        parents = [part.values() if isinstance(part, dict) else part for part in level]
        level = [part for parent in parents for part in parent if isinstance(part, dict | list)]
        if not level:
            return False
    return True


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
