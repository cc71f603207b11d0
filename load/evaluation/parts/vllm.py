"""Orca beside vLLM's CPU build: the paper's trace over HTTP with the same client, model, dtype and cores."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from functools import partial

from load.bench.beside_vllm import serving
from load.bench.figures import Table
from load.bench.gpu.end_to_end import prompted, since_due
from load.bench.parts.over_http import MAX_BATCH_SIZE
from load.curves import Curve, median_normalized_latency
from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.rates import LATENCY, from_json, measured, panel, table_of, to_json
from load.over_http import run_over_http
from load.server import OrcaServer
from load.trace import Answer, Request
from load.vllm import VllmServer
from load.workloads import paper_lengths, single

HELP = "vLLM's CPU build beside Orca on the same work (needs --vllm-python)"
FLAGS = ("--no-prefix-caching", "--max-batch-size", str(MAX_BATCH_SIZE))
CURVES, LONE = "Median normalized latency against throughput, over HTTP", "A lone stream, output tokens/s"


def measure(bench: Bench) -> Found:
    assert bench.vllm_python is not None, "without --vllm-python this part is not run"
    started: dict[str, AbstractContextManager[OrcaServer | VllmServer]] = {
        "Orca": bench.server(*FLAGS),
        "vLLM": serving(bench.options, bench.vllm_python),
    }
    curves, lone = [], {}
    for name, starting in started.items():
        with starting as server:
            curve, lone[name] = measured_at(server.url, name, bench.seconds)
            curves.append(curve)
    figures: dict[str, Table] = {CURVES: table_of(curves, 1e3, "ms/token"), LONE: {"": lone}}
    return Found(figures, {"curves": to_json(curves)})


def plots(found: Found) -> Plots:
    curves = from_json(found.series["curves"])
    return {"vllm": [panel("Orca beside vLLM, one client, two servers in turn", LATENCY, curves, 1e3, baseline="vLLM")]}


def measured_at(url: str, label: str, seconds: float) -> tuple[Curve, float]:
    """The curve of the server at `url`, and the output tokens/s of a lone stream."""
    ask = partial(_serve, url)
    ask(paper_lengths(4, seed=9))  # warm up
    alone = asyncio.run(run_over_http(url, prompted(single()))).throughput
    return measured(label, ask, paper_lengths, MAX_BATCH_SIZE, seconds, median_normalized_latency), alone


def _serve(url: str, trace: list[Request]) -> list[Answer]:
    return since_due(asyncio.run(run_over_http(url, prompted(trace))).answers)
