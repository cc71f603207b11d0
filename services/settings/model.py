"""Settings of the model: which it is, and what is used in place of its own files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings

from services.errors import ModelError
from services.settings.types import Names, Section

CONFIG = "generation_config.json"


def _model(given: str) -> str:
    """Return a local path, with or without a revision, from the root, since the working folders of processes differ."""
    for name in (given, given.rpartition("@")[0]):
        if name not in ("", "default") and (path := Path(name).expanduser()).exists():
            return os.path.abspath(path) + given[len(name) :]
    return given


def _tokenizer(name: str) -> str:
    """Return the path of a local folder from the root, since the working folders of processes differ; a hub id stays as
    it is."""
    if not name:
        return name
    from services.models.replaced import local_tokenizer  # takes 25 ms, and few users set it

    folder = local_tokenizer(name)
    return str(folder.absolute()) if folder else name


def _template(given: str) -> str:
    """Return the template in the file `given`, or `given` if it is a template itself. The file is read once, so that
    all processes of the server have one template."""
    if not given:
        return given
    template, where = given, ""
    try:
        template, where = Path(given).expanduser().read_text(encoding="utf-8"), f"{given}, "
    except (OSError, ValueError) as error:
        if "{" not in given:
            raise ValueError(f"is neither a file that can be read nor a template: {error}") from None
    if "{" not in template:
        raise ValueError("is no template: without a '{', it would ignore the messages")
    from services.text.chat_template import fault_of  # takes 70 ms, and few users set it

    if fault := fault_of(template):
        raise ValueError(f"is no valid template: {where}{fault}")
    return template


def _generation_config(given: str) -> str:
    """Return `auto`, `vllm`, or the JSON of the config in the folder `given`; the JSON itself is accepted too."""
    if given in ("auto", "vllm"):
        return given
    text, where = given, CONFIG
    if not given.startswith("{"):
        file = Path(given).expanduser() / CONFIG
        try:
            text, where = file.read_text(encoding="utf-8"), str(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"is neither auto, vllm nor a folder with a {CONFIG}: {error}") from None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{where} holds {type(config).__name__}, not an object")
    from services.models.generation import check_config  # takes 25 ms, and few users have such a file

    try:
        check_config(config, where)
    except ModelError as error:
        raise ValueError(str(error)) from None
    return json.dumps(config)


def _with_runner(values: dict[str, Any]) -> dict[str, Any]:
    """Make vLLM's flags for the kind of a model a part of `hf_overrides`."""
    asked = {name: str(value) for name in ("runner", "task", "convert") if (value := values.pop(name, ""))}
    if not asked:
        return values
    from services.models.pooling import TASKS

    given = values.get("hf_overrides") or {}
    overrides = json.loads(given) if isinstance(given, str) else dict(given)
    for name, value in asked.items():
        if value not in TASKS:
            raise ValueError(f"{name}={value} is none of {', '.join(TASKS)}")
        if TASKS[value] != "auto":
            overrides["runner"] = TASKS[value]
    return values | {"hf_overrides": overrides}


def _override(values: dict[str, int | float]) -> dict[str, int | float]:
    if values:
        from services.models.generation import check_override

        check_override(values)
    return values


def _fields_of_config(values: dict[str, Any]) -> dict[str, Any]:
    if values:
        from services.models.pooling import check_overrides

        check_overrides(values)
    return values


def method(given: str) -> str:
    """Return the quantization method `given` in lower case, as checkpoints name it. Raises ValueError for a method that
    is not served."""
    if given:
        from services.models.quantization import KERNELS, SERVED  # takes 25 ms, and few users set it

        if given.lower() not in (*SERVED, *KERNELS):
            raise ValueError(f"no method that is served; these are: {', '.join((*SERVED, *KERNELS))}")
    return given.lower()


class ModelSettings(BaseSettings):
    """The part of `Settings` about the model."""

    model: Annotated[
        str,
        Section.API,
        AfterValidator(_model),
        Field(description="a transformers folder, a GGUF file, a hub id or REPOSITORY@REVISION, or 'default'"),
    ] = "default"
    served_model_name: Annotated[
        Names, Field(description="names of the model in the API, the first in answers; none: derived from the model")
    ] = ()
    tokenizer: Annotated[
        str,
        AfterValidator(_tokenizer),
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
        AfterValidator(_override),
        Field(description="sampling defaults as JSON, before those of generation_config"),
    ] = {}
    hf_overrides: Annotated[
        dict[str, Any],
        AfterValidator(_fields_of_config),
        Field(
            description="fields that go before those of the model's config.json, as JSON: runner (vLLM's --runner: "
            "pooling serves a model for its vectors), is_matryoshka, matryoshka_dimensions, classifier_from_token, "
            "architectures, num_labels"
        ),
    ] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_revision(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Make `revision`, vLLM's name, a part of the model's name, which is all that other parts know."""
        values = _with_runner(dict(values))
        if not (revision := values.pop("revision", "")):
            return values
        model = str(values.get("model", "default"))
        if model == "default" or "@" in model or Path(model).expanduser().exists():
            raise ValueError(f"revision={revision} is for a hub id without one, not for model={model}")
        return values | {"model": f"{model}@{revision}"}
