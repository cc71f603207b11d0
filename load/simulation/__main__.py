"""`python -m load.simulation [--part NAME ...] [--out FOLDER]`: the simulator; prints tables, and with `--out` writes a
page of each part and its plots, as docs/simulator has them.

A part is a module of `load.simulation` with `HELP`, its description, and `run(out) -> str`, which returns Markdown and
draws plots in the folder `out`. `--record FOLDER` runs no part, but records one trace under request-level and under
iteration-level scheduling.
"""

from __future__ import annotations

from pathlib import Path

from load.arguments import parser_of
from load.in_process import Setup
from load.recording import BATCH, SCHEDULERS, Recording, example, file_of
from load.simulation import headline, paper, plan
from load.simulation.cost import TABLE_1
from load.simulation.specs import MAX_MODEL_LEN
from load.simulation.world import figures_of, run_simulated
from services.progress import print_beside
from services.scheduling import Knobs

RATE = 14.0  # requests per second of the recorded trace
HEAD = """# {name}: {about}

Written by `python -m load.simulation --part {name} --out docs/simulator`; [what it means](../simulator.md)."""
PARTS = {"headline": headline, "paper": paper, "plan": plan}


def main(arguments: list[str] | None = None) -> None:
    about = {name: part.HELP for name, part in PARTS.items()}
    parser = parser_of(
        "load.simulation", "Orca's real loop and scheduler on virtual time, around engines that only cost time.", about
    )
    parser.add_argument("--out", type=Path, help="a folder for a page of tables for each part, and for plots")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write a pair of recordings for the live page")
    given = parser.parse_args(arguments)
    if given.record:
        record(given.record)
        return
    for name in given.part or PARTS:
        page = f"{HEAD.format(name=name, about=PARTS[name].HELP)}\n\n{PARTS[name].run(given.out)}\n"
        print_beside(page)
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.md").write_text(page)


def record(folder: Path) -> None:
    """Record the example under both policies, on the paper's 13B model."""
    partition = TABLE_1["13B"]
    figures = figures_of(partition.num_slots, MAX_MODEL_LEN)
    for policy, scheduler in SCHEDULERS.items():
        recording = Recording(file_of(folder, policy))
        run_simulated(example(RATE), partition, figures, Setup(Knobs(BATCH), scheduler), recording)


if __name__ == "__main__":
    main()
