"""Settings of the model: which it is, and what is used in place of its own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings

from services.settings.types import Section

CONFIG = "generation_config.json"


def _absolute(name: str) -> str:
    """Return the path of a local folder from the root, since the working folders of processes differ; a hub id stays as
    it is."""
    return str(Path(name).expanduser().absolute()) if name and Path(name).expanduser().exists() else name


def _template(given: str) -> str:
    """Return the template in the file `given`, or `given` if it is a template itself. So the template is read once, and
    all processes of the server have the same."""
    template = given
    try:
        if given:
            template = Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if "{" not in given:
            raise ValueError(f"is neither a file that can be read nor a template: {error}") from None
    if given and "{" not in template:
        raise ValueError("is no template: without a '{', it would ignore the messages")
    return template


def _generation_config(given: str) -> str:
    """Return `auto`, `vllm`, or the JSON of the config in the folder `given`; the JSON itself is accepted too."""
    if given in ("auto", "vllm"):
        return given
    text = given
    if not given.startswith("{"):
        try:
            text = (Path(given).expanduser() / CONFIG).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"is neither auto, vllm nor a folder with a {CONFIG}: {error}") from None
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} holds {type(config).__name__}, not an object")
    return json.dumps(config)


class ModelSettings(BaseSettings):
    """The part of `Settings` about the model."""

    model: Annotated[
        str, Section.API, Field(description="a transformers folder, a GGUF file, a hub id, or 'default'")
    ] = "default"
    revision: Annotated[
        str, Field(description="branch, tag or commit of a hub id; the same as model REPOSITORY@REVISION")
    ] = ""
    served_model_name: Annotated[
        str, Field(description="name of the model in the API; empty: derived from the model")
    ] = ""
    tokenizer: Annotated[
        str,
        AfterValidator(_absolute),
        Field(description="a folder or hub id (REPOSITORY@REVISION) with another tokenizer; empty: the model's own"),
    ] = ""
    chat_template: Annotated[
        str,
        AfterValidator(_template),
        Field(description="a Jinja file, or the template itself; empty: that of the tokenizer"),
    ] = ""
    generation_config: Annotated[
        str,
        AfterValidator(_generation_config),
        Field(
            description="source of sampling defaults; auto: the model's generation_config.json, vllm: none, or a "
            "folder with such a file, which also sets the end tokens"
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, int | float],
        Field(description="sampling defaults as JSON, before those of generation_config"),
    ] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_revision(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Make `revision` a part of the model's name, which is all that other parts know."""
        revision = values.get("revision")
        if not revision:
            return values
        model = str(values.get("model", "default"))
        if model == "default" or "@" in model or Path(model).expanduser().exists():
            raise ValueError(f"revision={revision} is for a hub id without one, not for model={model}")
        return values | {"model": f"{model}@{revision}", "revision": ""}
