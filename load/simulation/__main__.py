"""`python -m load.simulation [--part NAME ...] [--out FOLDER]`: the simulator; prints tables and draws plots.

docs/simulator.md quotes its output. A part is a module of `load.simulation` with `HELP`, its description, and
`run(out) -> str`, which returns Markdown.
"""

from __future__ import annotations

from pathlib import Path

from load.options import parser as part_parser
from load.simulation import article, paper, plan

PARTS = {"paper": paper, "article": article, "plan": plan}


def main(arguments: list[str] | None = None) -> None:
    about = {name: part.HELP for name, part in PARTS.items()}
    parser = part_parser(
        "load.simulation", "Orca's real loop and scheduler on virtual time, around engines that only cost time.", about
    )
    parser.add_argument("--out", type=Path, help="a folder for plots (PNG); without it none are drawn")
    given = parser.parse_args(arguments)
    for name in given.part or PARTS:
        print(f"## {name}\n\n{PARTS[name].run(given.out)}\n", flush=True)


if __name__ == "__main__":
    main()
