"""The wire format: msgpack, in which a dataclass is the list of the values of its fields, in order.

Different builds that serve one pool can read each other's messages: fields that are missing at the end get their
defaults, and values after the last field are ignored. The only allowed change of a message is therefore a new last
field with a default. What changes an answer must not get lost like that: such a field belongs into `SamplingParams`,
where it is a feature that an engine must have (`FEATURES`).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from services.errors import Unreadable

M = TypeVar("M")
Convert = Callable[[Any], Any]


def pack(message: object) -> bytes:
    """Return the message as msgpack, which `unpack` of the same type reads."""
    return cast(bytes, msgpack.packb(message, default=_fields))


def unpack(kind: type[M], data: bytes) -> M:
    """Return the message of type `kind` in `data`. Raises Unreadable if there is none."""
    convert = _dataclass_converter(cast(Any, kind))
    try:
        return cast(M, convert(msgpack.unpackb(data, strict_map_key=False)))
    except (msgpack.UnpackException, ValueError, TypeError, AttributeError) as error:
        raise Unreadable(f"this is no {kind.__name__} that this build can read: {error}") from error


def named(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name."""
    kind: Any = type(message)
    return {name: getattr(message, name) for name in _names(kind)}


def _fields(message: Any) -> list[Any]:
    kind: Any = type(message)
    return [getattr(message, name) for name in _names(kind)]


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def _converter(kind: Any) -> Convert | None:
    """Return the function from a decoded value to a `kind`; None if the value already is one."""
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_converter(cast(Any, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin in (Union, types.UnionType):
        inner = [c for a in args if a is not type(None) and (c := _converter(a)) is not None]
        assert len(inner) <= 1, f"{kind} cannot be told apart on the wire"
        return (lambda v: None if v is None else inner[0](v)) if inner else None
    if origin is list:
        item = _converter(args[0])
        return (lambda v: [item(x) for x in v]) if item else None
    if origin is dict:
        value = _converter(args[1])
        return (lambda v: {k: value(x) for k, x in v.items()}) if value else None
    if origin is tuple:
        return _tuple_converter(args)
    return None


def _tuple_converter(args: tuple[Any, ...]) -> Convert:
    if args[-1] is Ellipsis:
        item = _converter(args[0])
        return (lambda v: tuple(item(x) for x in v)) if item else tuple
    items = [_converter(a) or (lambda x: x) for a in args]
    return lambda v: tuple(c(x) for c, x in zip(items, v, strict=True))


@cache
def _dataclass_converter(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    converters = [(i, c) for i, name in enumerate(_names(kind)) if (c := _converter(hints[name])) is not None]
    known = len(_names(kind))

    def convert(values: list[Any]) -> Any:
        if not isinstance(values, list):
            raise TypeError(f"{kind.__name__} is a list, got {type(values).__name__}")
        del values[known:]  # values of a later build
        for i, c in converters:
            if i >= len(values):  # an earlier build does not have the last fields
                break
            values[i] = c(values[i])
        return kind(*values)

    return convert
