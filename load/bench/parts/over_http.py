"""The paper's trace and a lone stream in process and over HTTP, in turn, each alone on the machine."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

from load.bench.figures import Figures, Table, rounds_of
from load.bench.spent import own_seconds, spend
from load.in_process import Setup, run_in_process
from load.options import Options, load_engine
from load.processes import busy_seconds, by_kind
from load.server import OrcaServer
from load.trace import Run
from load.workloads import paper, single
from services.scheduling import Knobs

ROUNDS = 2
MAX_BATCH_SIZE = 32
IDLE = 5.0  # seconds
SETUP = Setup(Knobs(MAX_BATCH_SIZE))
WARM = paper(4, 9)
WORKLOADS = {"paper": paper(), "single": single()}
# as in process; with prefix caching a later run would find the prompts of the warm-up in the cache
FLAGS = ("--preset", "paper", "--max-batch-size", str(MAX_BATCH_SIZE))

RATES, SPENT, IDLY = "Output tokens/s", "Processor time of a token, ms", "Idle server, share of a core"
PLAIN, SERVED, RATIO = "in process", "over HTTP", "seconds over HTTP / in process"
ABOUT = (
    "`paper`: the trace, 64 requests at once; `single`: one request, 128 tokens in and out. First in process, while no "
    f"server runs, then over HTTP, with gateways, pool and Ray. `max_batch_size` {MAX_BATCH_SIZE}; server and client "
    "on the same cores. Others: the cores that other work on the machine had meanwhile; a run is disturbed where it is "
    "not near 0."
)


def run(options: Options) -> str:
    return rounds_of(measure, options, ABOUT, ROUNDS)


def measure(options: Options) -> Figures:
    plain, spent, others = _in_process(options)
    flags = ["--model", options.model, "--device", options.device, "--dtype", options.dtype, *FLAGS]
    rates: Table = {}
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder), *flags) as server:
        spend(server.url, WARM, server.processor_seconds)
        for name, requests in WORKLOADS.items():
            found, expected = spend(server.url, requests, server.processor_seconds), plain[name]
            rates[name] = {
                PLAIN: expected.throughput,
                SERVED: found.run.throughput,
                RATIO: found.run.seconds / expected.seconds,
                "equal outputs": _equal(found.run, expected) / len(requests),
                f"others, {PLAIN}": others[name],
                f"others, {SERVED}": found.others,
            }
            spent[f"{name}, {SERVED}"] = found.per_token(1e-3)
        return {RATES: rates, SPENT: spent, IDLY: {"": _idle(server)}}


def _in_process(options: Options) -> tuple[dict[str, Run], Table, dict[str, float]]:
    """The runs of the workloads on an engine in this process, the processor milliseconds of a token, and the cores that
    other work had."""
    engine = load_engine(options)
    run_in_process(engine, WARM, SETUP)
    runs, spent, others = {}, {}, {}
    for name, requests in WORKLOADS.items():
        own, busy, began = own_seconds(), busy_seconds(), time.perf_counter()
        runs[name] = run_in_process(engine, requests, SETUP)
        took, own, busy = time.perf_counter() - began, own_seconds() - own, busy_seconds() - busy
        spent[f"{name}, {PLAIN}"] = {"a token": own / runs[name].tokens * 1e3}
        others[name] = max(0.0, busy - own) / took
    del engine
    gc.collect()
    return runs, spent, others


def _equal(run: Run, expected: Run) -> int:
    return sum(output == other for output, other in zip(run.outputs, expected.outputs, strict=True))


def _idle(server: OrcaServer) -> dict[str, float]:
    """Processor seconds in a second without requests, by kind of process."""
    before = server.processor_seconds()
    time.sleep(IDLE)
    spent = by_kind(before, server.processor_seconds())
    return {kind: seconds / IDLE for kind, seconds in spent.items()} | {"in all": sum(spent.values()) / IDLE}
