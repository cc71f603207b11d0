"""Writes what of the docs is in the code: docs/settings.md, and the modules in docs/architecture.md.

python docs/generate.py
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Literal, get_args, get_origin

from services.config import FILE, Settings

ROOT = Path(__file__).parents[1]
ROOMS = ("gateway", "services", "actors", "cli", "load")
MODULES = "## Modules\n"


def settings() -> str:
    """docs/settings.md"""
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


def architecture() -> str:
    """docs/architecture.md with its last section made anew."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    head, _, _ = text.partition(MODULES)
    return head + MODULES + "".join(_room(room) for room in ROOMS)


def _room(room: str) -> str:
    listed = subprocess.run(["git", "ls-files", f"{room}/*.py", f"{room}/**/*.py"], cwd=ROOT, capture_output=True)
    files = sorted(set(listed.stdout.decode().split()), key=lambda f: (Path(f).parent.parts, Path(f).name))
    lines = [f"- [`{file}`](../{file}): {_about(file)}\n" for file in files if not file.endswith(("__init__.py",))]
    return f"\n### {room}\n\n{_about(f'{room}/__init__.py')}\n\n" + "".join(lines)


def _about(file: str) -> str:
    """The first sentence or two of a module's docstring, on a line."""
    text = ast.get_docstring(ast.parse((ROOT / file).read_text()))
    assert text, f"{file} does not say what it is"
    return text.partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    (ROOT / "docs" / "settings.md").write_text(settings())
    (ROOT / "docs" / "architecture.md").write_text(architecture())
