"""The paper's trace, and one stream, over HTTP, pool and Ray, and in process on the same engine; in turn. And whose
processor time the trace takes over HTTP."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from pathlib import Path

from load import in_process, over_http
from load.markdown import table
from load.options import Options, load_engine
from load.server import OrcaServer
from load.workloads import Job, paper, single
from services.scheduling import Knobs

ALIKE = ("--no-prefix-caching",)  # a later round would find the prompts of the one before
ROUNDS = 2
MAX_BATCH_SIZE = 32
SHOWN = 0.1  # processor seconds of a process at least
SETUP = in_process.Setup(Knobs(MAX_BATCH_SIZE))
WORKLOADS = {"paper": paper(), "single": single()}


def run(options: Options) -> str:
    engine = load_engine(options)
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype]
    flags += ["--max-batch-size", str(MAX_BATCH_SIZE)]
    rows = []
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags, *ALIKE) as server:
        in_process.run_trace(engine, paper(4, 9), SETUP)  # warm up
        asyncio.run(over_http.run_trace(server.url, paper(4, 9)))
        for name, jobs in WORKLOADS.items():
            rows += [[name, number, *_in_turn(engine, server, jobs)] for number in range(1, ROUNDS + 1)]
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


def _processor_seconds(server: OrcaServer, jobs: list[Job]) -> list[tuple[str, float]]:
    """Of each kind of process, the costliest first."""
    before = server.cpu_seconds()
    asyncio.run(over_http.run_trace(server.url, jobs))
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in server.cpu_seconds().items()}
    return sorted(spent.items(), key=lambda item: -item[1])


def _in_turn(engine: in_process.Engine, server: OrcaServer, jobs: list[Job]) -> list[str]:
    """Seconds in process and over HTTP, their ratio, and how many outputs are equal."""
    gc.collect()
    alone = in_process.run_trace(engine, jobs, SETUP)
    seconds, streams = asyncio.run(over_http.run_trace(server.url, jobs))
    same = sum(s.token_ids == output for s, output in zip(streams, alone.outputs, strict=True))
    return [
        f"{alone.seconds:.1f}",
        f"{seconds:.1f}",
        f"{seconds / alone.seconds:.3f}",
        f"{same} of {len(jobs)}",
    ]
