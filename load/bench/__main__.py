"""`python -m load.bench [--part NAME ...]`: the benchmarks of docs/benchmarks.md; each prints a Markdown table.

A part is a module of `load.bench.parts` with `run(options) -> str`, which returns markdown. Only the parts that run are
imported: a machine with a GPU may have neither Ray nor Redis, and some parts need neither.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from load.bench import parts as benches
from load.options import Options, add_model, add_numerics
from load.options import parser as part_parser
from load.report import machine
from services.progress import Bar, print_beside


def parts() -> dict[str, str]:
    """The description of each part by its name."""
    return {file.stem: _about(file) for file in sorted(Path(benches.__path__[0]).glob("[!_]*.py"))}


def _about(file: Path) -> str:
    """The first line of a module's docstring, read without an import of the module."""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def main(arguments: list[str] | None = None) -> None:
    known = parts()
    parser = part_parser("load.bench", "Benchmarks of Orca.", known)
    add_model(parser)
    add_numerics(parser)
    given = parser.parse_args(arguments)
    options = Options(given.model, given.device, given.dtype, given.cache_dir)
    print(f"Measured on {machine()}.\n", flush=True)
    for name in (bar := Bar(given.part or list(known), unit="parts")):
        bar.set_description_str(name)
        part = importlib.import_module(f"{benches.__name__}.{name}")
        print_beside(f"## {name}\n\n{part.run(options)}\n")


if __name__ == "__main__":
    main()
