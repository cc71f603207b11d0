"""The command lines of `orca`: the parser, the flags of `orca serve`, and secrets that are hidden from `ps`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import textwrap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import SecretStr

from services.errors import UsageError
from services.settings.gone import GONE
from services.settings.names import PARTS, VLLM_FLAGS, own_flag, suggestion
from services.settings.settings import FILE, NAMES, Settings, sections
from services.settings.sources import load

MIN_COLUMNS, MAX_COLUMNS = 80, 100  # of `--help`
SERVE_DESCRIPTION = f"""\
Serve one model or several: pool, engines, schedulers and gateway, until Ctrl-C.

Each setting is a flag here, a variable (ORCA_MAX_BATCH_SIZE, say)
and a name in a settings file. A flag wins over a variable, a variable over
the file of --config, that file over {FILE} in the current folder.
"""
# what `--help` describes
COMMON = (
    *("served_model_name", "host", "port", "api_key", "engines", "device", "dtype", "max_model_len", "max_batch_size"),
    *("kv_memory_fraction", "tp", "redis_url", "data_dir"),
)
LONGEST_CHOICES = 60  # characters of a line of the help
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", SecretStr: "TEXT", Path: "PATH"}
SECRET_FLAGS = frozenset({b"--api-key", b"--api-keys", b"--operator-api-key", b"--redis-url"})
ARG_START = 48 - 3  # index among the fields of /proc/self/stat after the name of the process


class Parser(argparse.ArgumentParser):
    """An argparse parser without abbreviations, whose errors are one line with the nearest name.

    `other_flags` are suggested, too, if an unknown flag is similar to one of them.
    """

    def __init__(self, program: str, description: str, other_flags: Iterable[str] = (), add_help: bool = True) -> None:
        options: dict[str, Any] = {"allow_abbrev": False, "formatter_class": _Formatter, "add_help": add_help}
        super().__init__(program, description=description, **options)
        self._other_flags = other_flags

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse a command line. Raises UsageError; `--help` ends the program."""
        options, extra = self.parse_known_args(arguments)
        for argument in extra:
            if argument.startswith("-"):
                flag = argument.partition("=")[0]
                actions = self._option_string_actions.items()
                shown = [name for name, action in actions if action.help != argparse.SUPPRESS]
                known = [*shown, *self._other_flags] if flag.startswith("--") else []
                raise UsageError(f"unknown flag {flag}{suggestion(flag, known)}")
        if extra:
            raise UsageError(f"unexpected argument {extra[0]!r}")
        return options

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Lines of 80 to 100 columns, broken only between words: a hyphen belongs to a flag."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size((MIN_COLUMNS, 24)).columns
        super().__init__(prog, max_help_position=30, width=min(MAX_COLUMNS, max(MIN_COLUMNS, columns)) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def parse_serve(arguments: Sequence[str]) -> Settings:
    """The settings of `orca serve ARGUMENTS`. Raises UsageError; `--help` ends the program."""
    switches = {name for name in NAMES if _type(name) is bool}
    parser = _serve_parser(NAMES)
    given = vars(parser.read([own_flag(argument, switches) for argument in arguments]))
    config, models = given.pop("config"), given.pop("MODEL")
    if len(models) > 1 or (models and models[0].startswith(("{", "["))):
        if named := {"model", "models"} & given.keys():
            raise UsageError(f"MODEL is {' '.join(models)!r} and --{named.pop()} is given; name the models once")
        given["models"] = models
    elif models and given.setdefault("model", models[0]) != models[0]:
        raise UsageError(f"MODEL is {models[0]!r} and --model {given['model']!r}; name the model once")
    return load(config, **given)


class _Help(argparse.Action):
    """`--help`, `--help=TOPIC`, `--help=SETTING` and `--help=all`."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, topic: Any, __: str | None = None) -> None:
        print(serve_help(topic).rstrip())
        parser.exit()


def serve_help(topic: str | None) -> str:
    """What `orca serve --help` prints: the settings that are given most often and the flags of each topic; or what each
    setting of one topic is, one setting, or `all`. Raises UsageError for an unknown topic.
    """
    topics = {section.split()[0].lower(): names for section, names in sections().items()}
    if topic is None:
        return _serve_parser(COMMON).format_help() + _topics(topics)
    name = topic.lstrip("-").replace("-", "_")
    known = {name: [name] for name in NAMES} | topics | {"all": list(NAMES)}
    if name not in known:
        raise UsageError(f"--help={topic} is unknown; there are all, {', '.join(topics)}, and each setting")
    return _serve_parser(known[name]).format_help()


def _topics(topics: dict[str, list[str]]) -> str:
    """The flags by topic."""
    lines = ["", "all settings, by topic, of which --help=TOPIC, =SETTING or =all describes more:"]
    for topic, names in topics.items():
        flags = " ".join("--" + name.replace("_", "-") for name in names)
        begin = f"  {topic:12}"
        wrapped = textwrap.wrap(flags, 78, initial_indent=begin, subsequent_indent=" " * 14, break_on_hyphens=False)
        lines += wrapped
    return "\n".join(lines)


def _serve_parser(shown: Collection[str]) -> Parser:
    """A parser with a flag for each setting, grouped by section. Its help describes the settings `shown`."""
    parser = Parser("orca serve", SERVE_DESCRIPTION, VLLM_FLAGS, add_help=False)
    parser.usage = "orca serve [MODEL ...] [--config FILE] [--SETTING VALUE ...]"
    parser.epilog = "docs/settings.md lists the flags of vLLM that are understood or refused."
    parser.add_argument("MODEL", nargs="*", help="one, as --model, or several, as --models")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file, .toml, .yaml or .yml")
    parser.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="TOPIC",
        help="this text, or that of a topic",
    )
    for name, setting in PARTS.items():
        _add(parser, name, str, f"vLLM's; a part of --{setting}" if setting in shown else argparse.SUPPRESS)
    for name, gone in GONE.items():
        _add(parser, name, gone.kind, argparse.SUPPRESS)
    for section, names in sections().items():
        group = parser.add_argument_group(section)
        for name in names:
            _add(group, name, _type(name), _help(name) if name in shown else argparse.SUPPRESS)
    return parser


def _add(parser: argparse._ActionsContainer, name: str, kind: Any, text: str) -> None:
    parser.add_argument("--" + name.replace("_", "-"), dest=name, default=argparse.SUPPRESS, help=text, **_kind(kind))


def _type(name: str) -> Any:
    return Settings.model_fields[name].annotation


def _kind(annotation: Any) -> dict[str, Any]:
    """How argparse reads the values of a setting of this type. pydantic validates them."""
    origin = get_origin(annotation) or annotation
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is Literal:
        values = "{" + ",".join(map(str, get_args(annotation))) + "}"
        return {"metavar": values if len(values) <= LONGEST_CHOICES else "NAME"}  # docs/settings.md lists all
    if origin in (list, tuple):
        return {"nargs": "+", "action": "extend", "metavar": "TEXT"}
    if origin is dict:
        return {"type": json_value, "metavar": "JSON"}
    return {"metavar": METAVARS.get(annotation, "VALUE")}


def json_value(text: str) -> Any:
    """Read an argument that is JSON."""
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


def hide_secrets() -> list[str]:
    """Overwrite the values of secret flags on the command line of this process, which other users can read, for example
    with `ps`. Returns the flags whose values are secrets, not names of files; they were readable until this call."""
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    address = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ARG_START])
    found: list[str] = []
    of_secret, name = False, ""
    for argument in arguments:
        flag, equals, _ = argument.partition(b"=")
        if argument.startswith(b"-"):
            of_secret, name = flag in SECRET_FLAGS, flag.decode()
            shown = len(flag) + 1 if equals else len(argument)
        else:
            shown = 0
        if of_secret and shown < len(argument):
            if not os.path.isfile(argument[shown:]):
                found.append(name)
            ctypes.memset(address + shown, ord("*"), len(argument) - shown)
        address += len(argument) + 1
    return list(dict.fromkeys(found))
