"""The paper's trace over HTTP, pool and Ray, against the same trace in process on the same engine; in turn."""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
from pathlib import Path

from load import in_process, stream_client
from load.markdown import table
from load.options import Options, load_engine
from load.server import OrcaServer
from load.workloads import paper
from services.scheduling import Knobs

ALIKE = ("--no-prefix-caching",)  # a later round would find the prompts of the one before
ROUNDS = 2
MAX_BATCH_SIZE = 32
SETUP = in_process.Setup(Knobs(MAX_BATCH_SIZE))


def run(options: Options) -> str:
    jobs = paper()
    engine = load_engine(options)
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype]
    flags += ["--max-batch-size", str(MAX_BATCH_SIZE)]
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags, *ALIKE) as server:
        in_process.run_trace(engine, paper(4, 9), SETUP)  # warm up
        asyncio.run(stream_client.run_trace(server.url, paper(4, 9)))
        for number in range(1, ROUNDS + 1):
            gc.collect()
            alone = in_process.run_trace(engine, jobs, SETUP)
            seconds, streams = asyncio.run(stream_client.run_trace(server.url, jobs))
            same = sum(s.token_ids == output for s, output in zip(streams, alone.outputs, strict=True))
            ratios.append(seconds / alone.seconds)
            rows.append(
                [number, f"{alone.seconds:.1f}", f"{seconds:.1f}", f"{ratios[-1]:.3f}", f"{same} of {len(jobs)}"]
            )
        metrics = server.metrics()
    head = ["round", "in process, s", "over HTTP, s", "ratio", "equal outputs"]
    return (
        f"`paper` trace, max_batch_size {MAX_BATCH_SIZE}, {engine.figures.numerics}; server and client on the same "
        f"cores. Median ratio {statistics.median(ratios):.3f}. "
        f"Over HTTP: peak batch {metrics['orca:peak_batch_size']:.0f}, "
        f"{metrics['orca:mixed_iterations_total']:.0f} of {metrics['orca:iterations_total']:.0f} iterations mixed.\n\n"
        + table(head, rows)
    )
