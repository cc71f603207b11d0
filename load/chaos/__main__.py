"""`python -m load.chaos`: a fault every few seconds under open streams, then the checker's verdict.

`--where` says what is hurt: processes of `orca serve` with a pool of its own; the master of a pool behind Sentinels; or
the servers of shards. Ends with status 1 if a token was lost, duplicated or differs from the undisturbed answer, if too
little happened for a verdict, or if the checker misses a violation that is planted in the run's own histories. Then the
histories are kept, and their folder is printed.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from load.arguments import add_options, chosen, parser_of
from load.chaos.grounds import ChaosOptions, Ground, OwnPool, Shards
from load.chaos.run import run
from load.chaos.sentinel_pool import SentinelPool
from load.report import machine

GROUNDS: dict[str, type[Ground]] = {"own": OwnPool, "sentinels": SentinelPool, "shards": Shards}


def main() -> None:
    parser = parser_of("load.chaos", __doc__ or "")
    parser.add_argument("--where", choices=list(GROUNDS), default="own", help="what is hurt; default own")
    add_options(parser, ChaosOptions)
    parser.add_argument("serve", nargs="*", help="further flags of `orca serve`, after --")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="orca-chaos-"))
    ground = GROUNDS[given.where](ChaosOptions(folder=folder, serve=given.serve, **chosen(ChaosOptions, given)))
    if unknown := set(given.faults) - ground.faults.keys():
        parser.error(f"--faults: no fault {', '.join(sorted(unknown))}; there are: {', '.join(ground.faults)}")
    print(f"Measured on {machine()}.\n", flush=True)
    held = asyncio.run(run(ground))
    if held:
        shutil.rmtree(folder)
    else:
        print(f"\nThe histories are in {folder}")
    sys.exit(not held)


if __name__ == "__main__":
    main()
