"""`python -m load.chaos`: a random fault every few seconds under open streams, then the checker's verdict.

Ends with status 1 if a token was lost, duplicated or differs from the undisturbed answer, if too little happened for a
verdict, or if the checker misses a violation that is planted in the run's own histories. Then the histories are
kept, and their folder is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from load.chaos.faults import FAULTS
from load.chaos.report import leave
from load.chaos.run import ChaosOptions, run
from load.report import machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long streams are started")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between faults")
    parser.add_argument(
        "--streams", type=int, default=16, help="streams open at any time, with prompts of the paper's lengths"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--length", type=int, default=40, help="output tokens of a usual request")
    parser.add_argument("--model", default="default", help="as `orca serve --model`")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--tenants", type=int, default=3, help="each with an API key of its own")
    parser.add_argument(
        "--refusals", default="408,429", help="statuses with which a request may end (default: %(default)s)"
    )
    parser.add_argument(
        "--deadly-token", type=int, default=49_000, help="a token id that no answer contains, for the fault poison"
    )
    parser.add_argument("--durability", default="strict", choices=["strict", "everysec"])
    parser.add_argument("--faults", default=",".join(FAULTS), help="some of: %(default)s")
    parser.add_argument("serve", nargs="*", help="further flags of `orca serve`, after --")
    given = vars(parser.parse_args())
    given["refusals"] = [int(status) for status in given["refusals"].split(",") if status]
    given["faults"] = [name.strip() for name in given["faults"].split(",")]
    if unknown := set(given["faults"]) - FAULTS.keys():
        parser.error(f"--faults: no fault {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    print(f"Measured on {machine()}.\n", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="orca-chaos-"))
    held = asyncio.run(run(ChaosOptions(folder=folder, **given)))
    leave(folder, held)


if __name__ == "__main__":
    main()
