"""The setting `models`: several models behind one API, each with settings of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from services.errors import UsageError
from services.pool.shards import MAX_SHARDS
from services.settings.adapters import AdapterSettings
from services.settings.model import ModelSettings
from services.settings.names import PARTS, own_name
from services.settings.scheduling import SchedulingSettings

Entry = dict[str, Any]
NUMBER = "number"  # of the model in ids, which an entry may have

OWN = frozenset(
    {
        *ModelSettings.model_fields,
        *AdapterSettings.model_fields,
        *(SchedulingSettings.model_fields.keys() - {"preset"}),
        *("tool_call_parser", "reasoning_parser", "allow_control_tokens"),
        *("engines", "min_engines", "max_engines", "sleep_idle_seconds", "tp", "pp", "threads"),
        *("device", "dtype", "weights", "quantization"),
        *("kv_cache_dtype", "batch_invariant", "block_size", "kv_blocks", "kv_memory_fraction", "max_model_len"),
        *("pool", "max_waiting", "max_pool_bytes", "max_queue_wait", "queue_timeout", "deadly_token"),
    }
)
"""The settings that a model may have of its own. All others are the server's."""


def entries(given: Any) -> Any:
    """Return the entries of `models`. A word that is no JSON object is the name of a model; a text that is a JSON list
    holds them all."""
    if isinstance(given, str):
        given = json.loads(given) if given.lstrip().startswith("[") else [given]
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ValueError("is no list of models")
    return tuple(entry for one in given for entry in _entry(one))


def _entry(given: Any) -> Iterable[Entry]:
    if isinstance(given, str):
        given = json.loads(given) if given.lstrip().startswith(("{", "[")) else {"model": given}
    if isinstance(given, list):
        return entries(given)  # type: ignore[no-any-return]
    if not isinstance(given, Mapping):
        raise ValueError(f"an entry is the name of a model or an object with its settings, not {given!r}")
    named = {_own_name(str(key)): value for key, value in given.items()}
    if "model" not in named:
        raise ValueError(f"an entry names no model, but {', '.join(named) or 'nothing'}")
    return [named]


def _own_name(key: str) -> str:
    try:
        name = own_name(key, OWN, (*PARTS, NUMBER))
    except UsageError as error:
        raise UsageError(f"models: {error}; an entry has settings of one model, not of the server") from None
    if name not in (*OWN, *PARTS, NUMBER):
        raise UsageError(f"models: {key} is a setting of the server, not of one model")
    return name


def settled(values: Entry, make: Callable[..., Any]) -> Entry:
    """Return `values`, settings by name, with all that each of their `models` has of its own. The first model's are
    also those of the server, so that one model is served as without a list. `make` makes settings of values.

    Raises ValueError for a setting that a model cannot have of its own, and for models that contradict each other.
    """
    values = dict(values)
    given: tuple[Entry, ...] = entries(values.pop("models", None) or ())
    if not given:
        return values
    if (first := values.pop("model", given[0]["model"])) != given[0]["model"]:
        raise ValueError(f"model={first!r} and models: name the models in one of them")
    if len(given) == 1:
        return values | given[0]
    shared = {name: value for name, value in values.items() if name != NUMBER}
    own = [_own(shared, {NUMBER: place} | entry, make) for place, entry in enumerate(given)]
    _check(own)
    return values | own[0] | {"models": own}


def check_names(models: Sequence[tuple[str, Sequence[str], str]]) -> None:
    """Raise UsageError if two models have a name of the API or their pool in common. `models` are, of each, its name in
    the settings, its names in the API and the name of its pool."""
    owners: dict[str, str] = {}
    for model, names, _ in models:
        for name in names:
            if name in owners:
                raise UsageError(
                    f"two models have the name {name!r}, {owners[name]} and {model}; give one of them another "
                    "served_model_name"
                )
        owners |= dict.fromkeys(names, model)
    pools: dict[str, str] = {}
    for model, _, pool in models:
        if pool in pools:
            raise UsageError(
                f"{pools[pool]} and {model} have the same files, and therefore the same pool; name the model once, "
                "with several served_model_names, or give one of them another pool, to serve it with other settings"
            )
        pools[pool] = model


def _own(shared: Entry, entry: Entry, make: Callable[..., Any]) -> Entry:
    """Return all that the model of an entry has of its own, as JSON."""
    try:
        made: Entry = make(**shared | entry).model_dump(mode="json")
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"{entry['model']}: {where}{': ' * bool(where)}{wrong['msg']}") from None
    return {name: made[name] for name in (*sorted(OWN), NUMBER)}


def _check(models: Sequence[Entry]) -> None:
    numbers = [model[NUMBER] for model in models]
    if len(set(numbers)) < len(numbers) or not all(0 <= number < MAX_SHARDS for number in numbers):
        raise ValueError(f"each model has a number of its own, from 0 to {MAX_SHARDS - 1}, not {numbers}")
    names = [name for model in models for name in model["served_model_name"]]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"served_model_name={twice!r} is the name of two models")
