"""Writes docs/settings.md from the Settings class: python docs/settings.py > docs/settings.md"""

from __future__ import annotations

from typing import Literal, get_args, get_origin

from services.config import FILE, Settings


def table() -> str:
    head = (
        "# Settings\n\n"
        f"A flag of `orca serve` wins over a variable, a variable over `{FILE}` in the current folder.\n"
        "`max_batch_size`, say, is `--max-batch-size 8`, `ORCA_MAX_BATCH_SIZE=8` or the line `max_batch_size = 8`.\n"
        "A setting that is unknown, out of range or contradicts another is an error that names it.\n\n"
        "| setting | default | what it is |\n|---|---|---|\n"
    )
    return head + "".join(f"| `{name}` | {_default(name)} | {_meaning(name)} |\n" for name in Settings.model_fields)


def _default(name: str) -> str:
    if name in ("data_dir", "cache_dir"):
        return f"`{'~/.local/share/orca' if name == 'data_dir' else '~/.cache/orca'}`"
    value = Settings.model_fields[name].default
    return f"`{value}`" if value != "" else "none"


def _meaning(name: str) -> str:
    field = Settings.model_fields[name]
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    listed = " (" + ", ".join(f"`{choice}`" for choice in choices) + ")" if choices else ""
    return f"{field.description}{listed}"


if __name__ == "__main__":
    print(table(), end="")
