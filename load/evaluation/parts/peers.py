"""Orca beside vLLM's CPU build and llama.cpp's own server: the paper's trace over HTTP, one client, the same cores.

vLLM serves the model's folder in the engine's dtype; llama.cpp serves a GGUF file, and Orca the same file beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from load import peers
from load.curves import curves_panel, from_json, sweep, table_of, to_json
from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.parts.figure_10 import LATENCY, LOADS
from load.evaluation.parts.over_http import MAX_BATCH_SIZE
from load.options import model_folder, served
from load.over_http import run_over_http
from load.report import Table
from load.server import OrcaServer
from load.trace import Answer, Request, since_due
from load.workloads import paper_lengths, prompted, single

HELP = "vLLM's CPU build and llama.cpp's server beside Orca on the same work (needs --vllm-python or --llama-server)"
FLAGS = ("--no-prefix-caching", "--max-batch-size", str(MAX_BATCH_SIZE))
LENGTH = 2048  # tokens of a request at most, for vLLM
SLOT = 640  # of one in llama.cpp, where all slots share a context: the trace's longest
FORMAT = "Q4_K_M"  # of the file, where a shape is given and no format
CURVES, LONE = "Median normalized latency against throughput, over HTTP", "A lone stream, output tokens/s"


def measure(bench: Bench) -> Found:
    curves, lone = [], {}
    with TemporaryDirectory() as folder:
        for name, start in servers(bench, Path(folder), *FLAGS):
            with start() as server:
                ask, most = partial(serve, server.url), bench.shorter(4 * MAX_BATCH_SIZE, 16)
                ask(paper_lengths(4, seed=9))  # warm up
                lone[name] = asyncio.run(run_over_http(server.url, prompted(single()), reuse=False)).throughput
                curves.append(sweep(name, ask, paper_lengths, most, LOADS, seconds=bench.seconds))
    figures: dict[str, Table] = {CURVES: table_of(curves, LOADS, 1e3, "ms/token"), LONE: {"": lone}}
    return Found(figures, {"curves": to_json(curves)})


def servers(
    bench: Bench, folder: Path, *flags: str, spares: bool = True
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[OrcaServer | peers.PeerServer]]]]:
    """What starts each server, by its name: those of the model's folder, unless it is stored in a format, then those of
    a GGUF file. `flags` and `spares` are those of ours."""
    named, options = bench.peers, bench.options
    if not options.format:
        yield "Orca", partial(bench.server, *flags, spares=spares)
    if named.vllm_python and not options.format:
        more = options.weights_dtype, MAX_BATCH_SIZE, LENGTH, folder / "vllm.log"
        yield "vLLM", partial(peers.vllm, named.vllm_python, model_folder(options), *more)
    if options.format or named.llama_server:
        file = named.gguf or Path(served(replace(options, format=options.format or FORMAT)))
        on_file = Bench(replace(options, model=str(file), shape="", format=""), bench.seconds)
        yield f"Orca, {file.name}", partial(on_file.server, *flags, spares=spares)
        if named.llama_server:
            log = folder / "llama.log"
            yield (
                f"llama.cpp, {file.name}",
                partial(peers.llama_cpp, named.llama_server, file, MAX_BATCH_SIZE, SLOT, log),
            )


def plots(found: Found) -> Plots:
    title, curves = "Orca beside other servers, one client, in turn", from_json(found.series["curves"])
    return {"peers": [curves_panel(title, LATENCY, curves, 1e3, "Orca", log_y=True)]}


def serve(url: str, trace: list[Request]) -> list[Answer]:
    return since_due(asyncio.run(run_over_http(url, prompted(trace), reuse=False)).answers)
