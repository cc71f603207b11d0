"""Settings of LoRA adapters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import BaseSettings, NoDecode

from services.files import absolute_folder
from services.settings.types import Folder, Section

MOST_RANK = 256  # that of `services.adapters.peft`, which takes a moment to import


class LoraModule(BaseModel):
    """An adapter that is loaded at the start. `path` is its folder. `tenants` see it; none: all do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    path: Annotated[Path, AfterValidator(absolute_folder)]
    base_model_name: str | None = None  # of vLLM; the adapter is for the served model
    tenants: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.model_dump_json(exclude_none=True) if self.tenants else f"{self.name}={self.path}"


def _modules(given: Any) -> Any:
    """Return the modules in vLLM's two forms: `name=path`, or an object of JSON."""
    if isinstance(given, str):  # a variable, or a single value in a file
        given = json.loads(given) if given.startswith("[") else [given] if given.startswith("{") else given.split()
    return [_module(one) for one in given] if isinstance(given, (list, tuple)) else given


def _module(one: Any) -> Any:
    if not isinstance(one, str):
        return one
    if one.startswith("{"):
        return json.loads(one)
    name, equals, path = one.partition("=")
    if not equals:
        raise ValueError(f"{one!r} is neither NAME=PATH nor a JSON object with name and path")
    return {"name": name, "path": path}


class AdapterSettings(BaseSettings):
    """The part of `Settings` about adapters."""

    enable_lora: Annotated[
        bool, Section.API, Field(description="serve LoRA adapters, each under its name as a model of its own")
    ] = False
    lora_modules: Annotated[
        tuple[LoraModule, ...],
        NoDecode,
        BeforeValidator(_modules),
        Field(
            description="adapters to load at the start: NAME=PATH of a PEFT folder, or JSON with name, path, tenants"
        ),
    ] = ()
    lora_dir: Annotated[
        Folder,
        Field(description="folder below which /v1/load_lora_adapter may load adapters; empty: nowhere"),
    ] = ""
    max_lora_rank: Annotated[int, Field(ge=1, le=MOST_RANK, description="highest rank of an adapter")] = MOST_RANK

    def check_adapters(self) -> None:
        """Raises ValueError for contradictions."""
        if self.lora_modules and not self.enable_lora:
            raise ValueError("lora_modules: set enable_lora too, without which no adapter is served")
        names = Counter(module.name for module in self.lora_modules)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"lora_modules: {twice[0]!r} is named twice")
