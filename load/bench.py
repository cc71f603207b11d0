"""The benchmarks: `python -m load.bench [--part NAME ...]` prints a markdown table each, as docs/benchmarks.md has it.

A part is a module of `load.benches` with `run(options) -> str` that returns markdown. Only those that run are imported:
a machine with a GPU may have neither Ray nor Redis, and needs them only for those that use them.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from load import benches
from load.machine import machine
from load.options import Options
from load.parts import parser as part_parser
from services.files import user_cache


def parts() -> dict[str, str]:
    """The parts there are, by name, with what each says of itself."""
    return {file.stem: _about(file) for file in sorted(Path(benches.__path__[0]).glob("[!_]*.py"))}


def _about(file: Path) -> str:
    """The first line of a module's docstring, without importing it."""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def main(arguments: list[str] | None = None) -> None:
    known = parts()
    parser = part_parser("load.bench", "Benchmarks of Orca.", known)
    parser.add_argument("--model", default="default", help="a transformers folder, a GGUF file, a hub id or 'default'")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--cache-dir", type=Path, default=user_cache(), help="where converted models are kept")
    given = parser.parse_args(arguments)
    options = Options(given.model, given.device, given.dtype, given.cache_dir)
    print(f"Measured on {machine()}.\n", flush=True)
    for name in given.part or known:
        part = importlib.import_module(f"{benches.__name__}.{name}")
        print(f"## {name}\n\n{part.run(options)}\n", flush=True)


if __name__ == "__main__":
    main()
