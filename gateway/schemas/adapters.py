"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: their bodies, as in vLLM, and `tenants`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.strict import Strict

Name = Annotated[str, Field(min_length=1, max_length=200)]


class LoadLoraAdapter(Strict):
    """`lora_path`: a PEFT folder, by its whole path or from `lora_dir` on."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool | None = None
    model: str | None = None  # for which it is; by default the first of the server
    tenants: Annotated[list[Name], Field(max_length=256)] | None = None


class UnloadLoraAdapter(Strict):
    lora_name: Name
    lora_int_id: int | None = None  # without an effect: vLLM takes it too
