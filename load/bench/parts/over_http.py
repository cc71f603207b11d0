"""The paper's trace and one stream over HTTP and in process on the same engine, in turn.

Over HTTP means with gateway, pool and Ray. A second table has the processor time of the server's processes.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path

from load.in_process import Engine, Setup, run_in_process
from load.options import Options, load_engine
from load.over_http import run_over_http
from load.report import table
from load.server import OrcaServer
from load.trace import Request
from load.workloads import paper, single
from services.scheduling import Knobs

ALIKE = ("--preset", "paper")  # as in process; a later round finds no prompts of an earlier one in the cache
ROUNDS = 2
MAX_BATCH_SIZE = 32
SHOWN = 0.1  # processor seconds; processes with less are not shown
SETUP = Setup(Knobs(MAX_BATCH_SIZE))
WORKLOADS = {"paper": paper(), "single": single()}


def run(options: Options) -> str:
    engine = load_engine(options)
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype]
    flags += ["--max-batch-size", str(MAX_BATCH_SIZE)]
    rows = []
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags, *ALIKE) as server:
        run_in_process(engine, paper(4, 9), SETUP)  # warm up
        asyncio.run(run_over_http(server.url, paper(4, 9)))
        for name, requests in WORKLOADS.items():
            rows += [[name, number, *_in_turn(engine, server, requests)] for number in range(1, ROUNDS + 1)]
        metrics, spent = server.metrics(), _processor_seconds(server, WORKLOADS["paper"])
    head = ["workload", "round", "in process, s", "over HTTP, s", "ratio", "equal outputs"]
    return (
        f"`paper`: the trace, all at once; `single`: one request, 128 tokens in and out. max_batch_size "
        f"{MAX_BATCH_SIZE}, {engine.figures.numerics}; server and client on the same cores. "
        f"Over HTTP: peak batch {metrics['orca:peak_batch_size']:.0f}, "
        f"{metrics['orca:mixed_iterations_total']:.0f} of {metrics['orca:iterations_total']:.0f} iterations mixed.\n\n"
        + table(head, rows)
        + "\n\nProcessor seconds of the server's processes while it served `paper` once more:\n\n"
        + table(["process", "s"], [[name, f"{seconds:.1f}"] for name, seconds in spent if seconds >= SHOWN])
    )


def _processor_seconds(server: OrcaServer, requests: list[Request]) -> list[tuple[str, float]]:
    """Processor seconds of each kind of process, in falling order."""
    before = server.cpu_seconds()
    asyncio.run(run_over_http(server.url, requests))
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in server.cpu_seconds().items()}
    return sorted(spent.items(), key=lambda item: -item[1])


def _in_turn(engine: Engine, server: OrcaServer, requests: list[Request]) -> list[str]:
    """The seconds in process and over HTTP, their ratio, and how many outputs are equal."""
    gc.collect()
    alone = run_in_process(engine, requests, SETUP)
    served = asyncio.run(run_over_http(server.url, requests))
    same = sum(output == expected for output, expected in zip(served.outputs, alone.outputs, strict=True))
    return [
        f"{alone.seconds:.1f}",
        f"{served.seconds:.1f}",
        f"{served.seconds / alone.seconds:.3f}",
        f"{same} of {len(requests)}",
    ]
