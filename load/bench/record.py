"""`python -m load.bench.record FOLDER`: a trace under request-level and under iteration-level scheduling, recorded.

The engine runs in this process. The live page replays the two files beside each other.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from load.in_process import Engine, Setup, run_in_process
from load.options import Options, add_model, add_numerics, load_engine
from load.recording import BATCH, Recording, example, file_of
from services.scheduling import Knobs, RequestLevelScheduler, Scheduler

RATE = 4.0  # requests per second
SCHEDULERS = {"request": RequestLevelScheduler, "iteration": Scheduler}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.record", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are written")
    add_model(parser)
    add_numerics(parser)
    options = parser.parse_args()
    record(load_engine(Options(options.model, options.device, options.dtype, options.cache_dir)), options.folder, RATE)


def record(engine: Engine, folder: Path, rate: float) -> None:
    """Record the example, whose requests arrive at `rate` per second, under both policies."""
    for policy, scheduler in SCHEDULERS.items():
        recording = Recording(file_of(folder, policy))
        run_in_process(engine, example(rate), Setup(Knobs(BATCH), scheduler=scheduler, recording=recording))


if __name__ == "__main__":
    main()
