"""Orca beside vLLM's CPU build and llama.cpp's own server: the paper's trace over HTTP, one client, the same cores.

vLLM serves the model's folder in the engine's dtype; llama.cpp serves a GGUF file, and Orca the same file beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from load import peers
from load.curves import Curve, median_normalized_latency
from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.parts.over_http import MAX_BATCH_SIZE
from load.evaluation.rates import (
    LATENCY,
    from_json,
    measured,
    panel,
    prompted,
    since_due,
    table_of,
    to_json,
)
from load.options import dtype_of, model_folder
from load.over_http import run_over_http
from load.report import Table
from load.server import OrcaServer
from load.trace import Answer, Request
from load.workloads import paper_lengths, single

HELP = "vLLM's CPU build and llama.cpp's server beside Orca on the same work (needs --vllm-python or --llama-server)"
FLAGS = ("--no-prefix-caching", "--max-batch-size", str(MAX_BATCH_SIZE))
LENGTH = 2048  # tokens of a request at most, for vLLM
SLOT = 640  # of one in llama.cpp, where all slots share a context: the trace's longest
CURVES, LONE = "Median normalized latency against throughput, over HTTP", "A lone stream, output tokens/s"
Server = AbstractContextManager[OrcaServer | peers.PeerServer]


def measure(bench: Bench) -> Found:
    curves, lone = [], {}
    with TemporaryDirectory() as folder:
        for name, starting in _servers(bench, Path(folder)):
            with starting as server:
                curve, lone[name] = measured_at(server.url, name, bench.seconds)
                curves.append(curve)
    figures: dict[str, Table] = {CURVES: table_of(curves, 1e3, "ms/token"), LONE: {"": lone}}
    return Found(figures, {"curves": to_json(curves)})


def _servers(bench: Bench, folder: Path) -> Iterator[tuple[str, Server]]:
    named, options = bench.peers, bench.options
    if named.vllm_python:
        yield "Orca", bench.server(*FLAGS)
        flags = dtype_of(options), MAX_BATCH_SIZE, LENGTH, folder / "vllm.log"
        yield "vLLM", peers.vllm(named.vllm_python, model_folder(options), *flags)
    if named.llama_server and named.gguf:
        on_file = Bench(replace(options, model=str(named.gguf)), bench.seconds)
        yield f"Orca, {named.gguf.name}", on_file.server(*FLAGS)
        flags_of_llama = MAX_BATCH_SIZE, SLOT, folder / "llama.log"
        yield f"llama.cpp, {named.gguf.name}", peers.llama_cpp(named.llama_server, named.gguf, *flags_of_llama)


def plots(found: Found) -> Plots:
    curves = from_json(found.series["curves"])
    return {"peers": [panel("Orca beside other servers, one client, in turn", LATENCY, curves, 1e3, baseline="Orca")]}


def measured_at(url: str, label: str, seconds: float) -> tuple[Curve, float]:
    """The curve of the server at `url`, and the output tokens/s of a lone stream."""
    ask = partial(_serve, url)
    ask(paper_lengths(4, seed=9))  # warm up
    alone = asyncio.run(run_over_http(url, prompted(single()), reuse=False)).throughput
    return measured(label, ask, paper_lengths, MAX_BATCH_SIZE, seconds, median_normalized_latency), alone


def _serve(url: str, trace: list[Request]) -> list[Answer]:
    return since_due(asyncio.run(run_over_http(url, prompted(trace), reuse=False)).answers)
