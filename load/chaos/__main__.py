"""`python -m load.chaos`: a fault every few seconds under open streams, then the checker's verdict.

`--where` says what is hurt: processes of `orca serve` with a pool of its own; the master of a pool behind Sentinels;
the servers of shards; or nodes of a cluster, in namespaces of this command (Linux, root). Ends with status 1 if a token
was lost, duplicated or differs from the undisturbed answer, if too little happened for a verdict, or if the checker
misses a violation that is planted in the run's own histories. Then the histories are kept, and their folder is
printed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from load.chaos.grounds import ChaosOptions, Ground, OwnPool
from load.chaos.nodes import Nodes, enter
from load.chaos.run import run
from load.chaos.sentinel_pool import SentinelPool
from load.chaos.shards import Shards
from load.report import machine

GROUNDS: dict[str, type[Ground]] = {"own": OwnPool, "sentinels": SentinelPool, "shards": Shards, "nodes": Nodes}


def main() -> None:
    options, where = _options()
    print(f"Measured on {machine()}.\n", flush=True)
    held = asyncio.run(run(GROUNDS[where](options)))
    if held:
        shutil.rmtree(options.folder)
    else:
        print(f"\nThe histories are in {options.folder}")
    sys.exit(not held)


def _options() -> tuple[ChaosOptions, str]:
    parser = argparse.ArgumentParser(
        prog="python -m load.chaos", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--where", choices=list(GROUNDS), default="own", help="what is hurt")
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long streams are started")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between faults")
    parser.add_argument("--streams", type=int, default=16, help="streams open at any time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--length", type=int, default=40, help="output tokens of a usual request")
    parser.add_argument("--model", default="default", help="as `orca serve --model`; nodes have null engines")
    parser.add_argument("--engines", type=int, default=1, help="of the own pool")
    parser.add_argument("--tenants", type=int, default=3, help="of the own pool, each with an API key of its own")
    parser.add_argument("--refusals", default="408,429", help="statuses with which a request may end")
    parser.add_argument(
        "--deadly-token", type=int, default=49_000, help="a token id that no answer contains, for the fault poison"
    )
    parser.add_argument("--durability", default="strict", choices=["strict", "everysec"], help="of the own pool")
    parser.add_argument("--wait-replicas", type=int, default=0, help="as `orca serve`, behind Sentinels")
    parser.add_argument("--down-after", type=float, default=2.0, help="seconds of the Sentinels' down-after")
    parser.add_argument("--shards", type=int, default=2, help="each with a server and an engine")
    parser.add_argument("--faults", default="", help="some of those that there are, separated by commas; empty: all")
    parser.add_argument("serve", nargs="*", help="further flags of `orca serve`, after --")
    given = vars(parser.parse_args())
    if (where := given.pop("where")) == "nodes":
        enter()
    given["refusals"] = [int(status) for status in given["refusals"].split(",") if status]
    given["faults"] = [name.strip() for name in given["faults"].split(",") if name]
    options = ChaosOptions(folder=Path(tempfile.mkdtemp(prefix="orca-chaos-")), **given)
    known = GROUNDS[where](options).faults
    if unknown := set(given["faults"]) - known.keys():
        parser.error(f"--faults: no fault {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    return options, where


if __name__ == "__main__":
    main()
