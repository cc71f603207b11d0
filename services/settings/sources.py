"""Reads the settings of this process: flags over environment variables over the file of `--config` over `orca.toml`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Set
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as UnreadableVariable

from services.errors import UsageError
from services.settings import secret_files
from services.settings.gone import GONE, without_gone
from services.settings.names import PARTS, VLLM_FLAGS, own_name, suggestion
from services.settings.settings import FILE, NAMES, NOT_SETTINGS, SECRETS, Settings

SERVED = frozenset({"model", "models"})
TOO_DEEP = "its values are nested too deep"


def load(config: Path | None = None, /, **flags: Any) -> Settings:
    """Return the settings of this process: `flags` over the environment over the file `config` over `orca.toml`.

    Raises UsageError, which names each setting that is unknown, out of range or contradicts another.
    """
    return from_values(read_values(config, **flags))


def read_values(config: Path | None = None, /, **flags: Any) -> dict[str, Any]:
    """Return the values that `load` finds, as they are written: API keys are not hashed, and files of secrets are not
    read. Raises UsageError.
    """
    sources = [_from_file(Path(FILE)) if Path(FILE).exists() else {}]
    if config is not None:
        sources.append(_from_file(config))
    values: dict[str, Any] = {}
    for source in (*sources, without_gone(_from_environment()), without_gone(flags)):
        if not SERVED.isdisjoint(source):  # the last source that names a model names them all
            values = {name: value for name, value in values.items() if name not in SERVED}
        values |= source
    return values


def from_values(values: dict[str, Any]) -> Settings:
    """Return the settings with these values by name. Files of secrets are read. Raises UsageError."""
    try:
        return Settings(**secret_files.resolve(values))
    except ValidationError as error:
        raise UsageError("; ".join(_explain(one) for one in error.errors())) from None


def _explain(error: Any) -> str:
    """Describe one error of pydantic in one line that names the setting and does not repeat the value of a secret."""
    name = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    if error["type"] == "extra_forbidden":
        return f"unknown setting: {name}{suggestion(name, NAMES)}"
    setting = error["loc"][0]
    if setting in SECRETS:
        return f"{setting}: {message}"
    return f"{name}: {message} (got {error['input']!r})"


# --- environment variables -----------------------------------------------------------------------------------


def _from_environment() -> dict[str, Any]:
    """Return the values of the variables `ORCA_<NAME>` by the name of the setting.

    Raises UsageError for such a variable that names no setting, and for one that should hold JSON and does not.
    """
    prefix = Settings.model_config["env_prefix"]
    known = {prefix + name.upper() for name in NAMES}
    others = {prefix + name.upper(): name for name in (*PARTS, *GONE)}
    accepted = {*known, *others, *NOT_SETTINGS}
    unknown = sorted(name for name in os.environ if name.startswith(prefix) and name not in accepted)
    if unknown:
        named = ", ".join(name + _suggest_variable(name, prefix, known) for name in unknown)
        raise UsageError(f"unknown settings in the environment: {named}")
    try:
        values = EnvSettingsSource(Settings)()
    except UnreadableVariable as error:
        field = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
        raise UsageError(f"{prefix}{field.upper()} is not the JSON that it should hold: {error.__cause__}") from None
    return values | {own: os.environ[name] for name, own in others.items() if name in os.environ}


def _suggest_variable(name: str, prefix: str, known: Set[str]) -> str:
    flag = "--" + name.removeprefix(prefix).lower().replace("_", "-")
    return suggestion(prefix + VLLM_FLAGS[flag].upper() if flag in VLLM_FLAGS else name, known)


# --- settings files ------------------------------------------------------------------------------------------


def _from_file(file: Path) -> dict[str, Any]:
    """Return the values in a TOML or YAML file by the name of the setting.

    Raises UsageError with the file's name if the file cannot be read, sets something twice, or names an unknown
    setting.
    """
    values: dict[str, Any] = {}
    try:
        for key, value in _parse(file).items():
            name = own_name(str(key), NAMES, (*PARTS, *GONE))
            if name in values:
                raise UsageError(f"{name} is set twice, under another name too")
            values[name] = value
        return without_gone(values)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _parse(file: Path) -> dict[Any, Any]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(getattr(error, "strerror", None) or str(error)) from None
    match file.suffix:
        case ".toml":
            entries = _parse_toml(text)
        case ".yaml" | ".yml":
            entries = _parse_yaml(text)
        case other:
            raise UsageError(f"a settings file ends with .toml, .yaml or .yml, not with {other!r}")
    if not isinstance(entries, dict):
        raise UsageError(f"holds a {type(entries).__name__}, not names and values")
    return entries


def _parse_toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(TOO_DEEP) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(str(error)) from None


def _parse_yaml(text: str) -> Any:
    import yaml  # takes 20 ms, and few users have such a file

    try:
        return yaml.safe_load(text) or {}
    except RecursionError:
        raise UsageError(TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise UsageError(" ".join(str(error).split())) from None
