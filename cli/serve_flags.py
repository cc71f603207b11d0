"""The command line of `orca serve`: a flag for each setting, grouped as `--help` shows them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr

from cli.arguments import Parser
from services.errors import UsageError
from services.settings.names import VLLM_FLAGS, own_flag
from services.settings.settings import FILE, Settings, sections
from services.settings.sources import load

DESCRIPTION = f"""\
Serve a model: pool, engines, schedulers and gateway, until Ctrl-C.

Each setting is a flag here, a variable (ORCA_MAX_BATCH_SIZE, say)
and a name in a settings file. A flag wins over a variable, a variable over
the file of --config, that file over {FILE} in the current folder.
"""
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", SecretStr: "TEXT", Path: "PATH"}


def parse(arguments: list[str]) -> Settings:
    """The settings of `orca serve ARGUMENTS`. Raises UsageError; `--help` ends the program."""
    switches = {name for name, field in Settings.model_fields.items() if field.annotation is bool}
    parser = _parser()
    given = vars(parser.read([own_flag(argument, switches) for argument in arguments]))
    config, model = given.pop("config"), given.pop("MODEL")
    if model is not None and given.setdefault("model", model) != model:
        raise UsageError(f"MODEL is {model!r} and --model {given['model']!r}; name the model once")
    return load(config, **given)


def _parser() -> Parser:
    parser = Parser("orca serve", DESCRIPTION, VLLM_FLAGS)
    parser.usage = "orca serve [MODEL] [--config FILE] [--SETTING VALUE ...]"
    parser.epilog = "docs/settings.md lists the flags of vLLM that are understood and those that\nare refused."
    parser.add_argument("MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file, .toml, .yaml or .yml")
    for section, names in sections().items():
        group = parser.add_argument_group(section)
        for name in names:
            group.add_argument(_flag(name), dest=name, default=argparse.SUPPRESS, help=_help(name), **_kind(name))
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _kind(name: str) -> dict[str, Any]:
    """How argparse takes the values of a setting; pydantic checks them."""
    annotation: Any = Settings.model_fields[name].annotation
    origin = get_origin(annotation)
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is Literal:
        return {"metavar": "{" + ",".join(map(str, get_args(annotation))) + "}"}
    if origin in (list, tuple):
        return {"nargs": "+", "action": "extend", "metavar": "TEXT"}
    if origin is dict:
        return {"type": _json, "metavar": "JSON"}
    return {"metavar": METAVARS.get(annotation, "VALUE")}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    vllm = ", ".join(flag for flag, setting in VLLM_FLAGS.items() if setting == name)
    text = f"{field.description} (default: {_default(field.default)})" + f"; vLLM's {vllm}" * bool(vllm)
    return text.replace("%", "%%")


def _default(value: object) -> str:
    if isinstance(value, Path) and value.is_relative_to(Path.home()):
        return f"~/{value.relative_to(Path.home())}"
    return "none" if value in (None, "", (), {}) or (isinstance(value, SecretStr) and not value) else str(value)
