"""`python -m load.simulation [--part NAME ...] [--out FOLDER]`: the simulator; prints tables and draws plots.

docs/simulator.md quotes its output. A part is a module of `load.simulation` with `HELP`, its description, and
`run(out) -> str`, which returns Markdown. `--record FOLDER` runs no part, but records one trace under request-level and
under iteration-level scheduling.
"""

from __future__ import annotations

from pathlib import Path

from load.options import parser as part_parser
from load.recording import BATCH, POLICIES, Recording, example, file_of
from load.simulation import headline, paper, plan
from load.simulation.cost import TABLE_1
from load.simulation.world import Policy, run_simulated
from services.progress import print_beside

RATE = 14.0  # requests per second of the recorded trace
PARTS = {"headline": headline, "paper": paper, "plan": plan}


def main(arguments: list[str] | None = None) -> None:
    about = {name: part.HELP for name, part in PARTS.items()}
    parser = part_parser(
        "load.simulation", "Orca's real loop and scheduler on virtual time, around engines that only cost time.", about
    )
    parser.add_argument("--out", type=Path, help="a folder for plots (PNG); without it none are drawn")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write a pair of recordings for the live page")
    given = parser.parse_args(arguments)
    if given.record:
        record(given.record)
        return
    for name in given.part or PARTS:
        print_beside(f"## {name}\n\n{PARTS[name].run(given.out)}\n")


def record(folder: Path) -> None:
    """Record the example under both policies, on the paper's 13B model."""
    partition = TABLE_1["13B"]
    for policy in POLICIES:
        about = Policy(BATCH, partition.num_slots, partition.model.max_model_len, request_level=policy == "request")
        run_simulated(example(RATE), partition, about, Recording(file_of(folder, policy)))


if __name__ == "__main__":
    main()
