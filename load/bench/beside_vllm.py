"""The workloads of the part `over_http` on vLLM's server, with the same client, model, dtype and cores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from load.bench.figures import Figures, Table
from load.bench.parts.over_http import MAX_BATCH_SIZE, RATES, SERVED, SPENT, WARM, WORKLOADS
from load.bench.spent import spend
from load.options import Options, dtype_of, model_folder
from load.vllm import VllmServer

MAX_MODEL_LEN = 2048
ABOUT = (
    f"vLLM's server, over HTTP with the same client: the same model, dtype and cores, `--max-num-seqs "
    f"{MAX_BATCH_SIZE}`, no prefix caching. It runs alone on the machine."
)


def measure(options: Options, python: Path) -> Figures:
    """`python`: an interpreter beside which `vllm` is installed."""
    rates: Table = {}
    spent: Table = {}
    with serving(options, python) as server:
        spend(server.url, WARM, server.processor_seconds)
        for name, requests in WORKLOADS.items():
            found = spend(server.url, requests, server.processor_seconds)
            rates[name] = {SERVED: found.run.throughput, f"others, {SERVED}": found.others}
            spent[f"{name}, {SERVED}"] = {kind: ms for kind, ms in found.per_token(1e-3).items() if ms}
    return {RATES: rates, SPENT: spent}


@contextmanager
def serving(options: Options, python: Path) -> Iterator[VllmServer]:
    """vLLM's server on the model, in the dtype that our engine would have."""
    flags = ["--dtype", dtype_of(options), "--max-num-seqs", str(MAX_BATCH_SIZE), "--max-model-len", str(MAX_MODEL_LEN)]
    flags += ["--no-enable-prefix-caching"]
    with (
        tempfile.TemporaryDirectory() as folder,
        VllmServer(python, model_folder(options), Path(folder) / "log", *flags) as server,
    ):
        yield server
