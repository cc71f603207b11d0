"""Settings from the environment: `ORCA_NAME_OF_IT`."""

from __future__ import annotations

import os
from collections.abc import Set
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.exceptions import SettingsError as UnreadableVariable

from services.errors import UsageError
from services.settings.names import VLLM_FLAGS, suggestion


def read(settings: type[BaseSettings], no_settings: Set[str]) -> dict[str, Any]:
    """The values of the variables with the prefix of `settings`, by the name of the setting.

    Raises UsageError for a variable with the prefix that is neither a setting nor one of `no_settings`, and for one
    that should hold JSON and does not.
    """
    prefix = settings.model_config["env_prefix"]
    known = {prefix + name.upper() for name in settings.model_fields} | no_settings
    unknown = sorted(name for name in os.environ if name.startswith(prefix) and name not in known)
    if unknown:
        named = ", ".join(name + _suggestion(name, prefix, known) for name in unknown)
        raise UsageError(f"unknown settings in the environment: {named}")
    try:
        return EnvSettingsSource(settings)()
    except UnreadableVariable as error:
        field = next((name for name in settings.model_fields if f'"{name}"' in str(error)), "")
        raise UsageError(f"{prefix}{field.upper()} is not the JSON that it should hold: {error.__cause__}") from None


def _suggestion(name: str, prefix: str, known: Set[str]) -> str:
    flag = "--" + name.removeprefix(prefix).lower().replace("_", "-")
    return suggestion(prefix + VLLM_FLAGS[flag].upper() if flag in VLLM_FLAGS else name, known)
