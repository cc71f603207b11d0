"""Orca's engine in a process of its own: `python -m load.bench.drivers.of_orca GGUF WEIGHTS`.

A line on stdin is a trace, a list of [prompt, output tokens]; the answer is a line with the times of each request's
tokens. The first line on stdout describes the engine.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from load.in_process import Setup, run_in_process
from load.options import Options, load_engine
from load.trace import Request
from services.engine.engine import Engine
from services.scheduling import Knobs

MAX_BATCH_SIZE = 32


def main() -> None:
    model, weights = sys.argv[1:]
    engine = load_engine(Options(model=model, device="cpu", weights=weights))  # type: ignore[arg-type]  # a word that the parent checked
    say(f"{engine.figures.numerics}, max batch size {MAX_BATCH_SIZE}, otherwise default settings")
    for line in sys.stdin:
        say(run(engine, json.loads(line)))


def run(engine: Engine, trace: list[tuple[list[int], int]]) -> list[list[float]]:
    """The seconds from the beginning to each token of each request, through EngineLoop with an empty cache."""
    requests = [Request(prompt, outputs) for prompt, outputs in trace]
    return [answer.times for answer in run_in_process(engine, requests, Setup(Knobs(MAX_BATCH_SIZE))).answers]


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
