"""The benchmarks: `python -m load.bench [--part NAME ...]` prints a markdown table each, as docs/benchmarks.md has it.

A part is a module of `load.benches` with `HELP`, and `run(options) -> str` that returns markdown.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from load import benches
from load.machine import machine
from load.options import Options


def parts() -> dict[str, ModuleType]:
    """The parts there are, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(benches.__path__))
    return {name: importlib.import_module(f"{benches.__name__}.{name}") for name in names}


def main(arguments: list[str] | None = None) -> None:
    known = parts()
    parser = argparse.ArgumentParser(
        prog="python -m load.bench",
        description="Benchmarks of Orca.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:14}{module.HELP}" for name, module in known.items()),
    )
    parser.add_argument("--part", action="append", choices=list(known), help="run only this part; may be repeated")
    parser.add_argument("--model", default="default", help="a transformers folder, a GGUF file, a hub id or 'default'")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--cache-dir", type=Path, help="where converted models are kept")
    given = parser.parse_args(arguments)
    options = Options(given.model, given.device, given.dtype, given.cache_dir)
    print(f"Measured on {machine()}.\n", flush=True)
    for name in given.part or known:
        print(f"## {name}\n\n{known[name].run(options)}\n", flush=True)


if __name__ == "__main__":
    main()
