"""The simulator: `python -m load.simulate [--part NAME ...] [--out FOLDER]` prints tables and draws plots.

docs/simulator.md has what it printed.

A part is a module of `load.simulation` with `HELP`, and `run(out) -> str` that returns markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from load.simulation import article, paper, plan

PARTS = {"paper": paper, "article": article, "plan": plan}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m load.simulate",
        description="Orca's real loop and scheduler on virtual time, around engines that only cost time.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:14}{part.HELP}" for name, part in PARTS.items()),
    )
    parser.add_argument("--part", action="append", choices=list(PARTS), help="run only this part; may be repeated")
    parser.add_argument("--out", type=Path, help="a folder for plots (PNG); without it none are drawn")
    given = parser.parse_args(arguments)
    for name in given.part or PARTS:
        print(f"## {name}\n\n{PARTS[name].run(given.out)}\n", flush=True)


if __name__ == "__main__":
    main()
