"""What HTTP, gateways, pool and Ray cost: the paper's trace and a lone stream in process, then over HTTP."""

from __future__ import annotations

import time

from load.evaluation.bench import Bench, Found, Plots
from load.evaluation.spent import busy_share, own_seconds, spend
from load.in_process import Setup, run_in_process
from load.plots import Bars
from load.processes import by_kind
from load.report import Table
from load.server import OrcaServer
from load.trace import Run
from load.workloads import paper, single
from services.scheduling import Knobs

HELP = "the paper's trace and a lone stream over HTTP, beside the same engine in process"
MAX_BATCH_SIZE = 32
IDLE = 5.0  # seconds
SETUP = Setup(Knobs(MAX_BATCH_SIZE))
WARM = paper(4, 9)
WORKLOADS = {"paper": paper(), "single": single()}
# as in process; with prefix caching a later run would find the prompts of the warm-up in the cache
FLAGS = ("--preset", "paper", "--max-batch-size", str(MAX_BATCH_SIZE))
# "others": the cores that other work on the machine had meanwhile; a run is disturbed where it is not near 0
RATES, SPENT, IDLY = "Output tokens/s", "Processor time of a token, ms", "Idle server, share of a core"
PLAIN, SERVED, RATIO = "in process", "over HTTP", "seconds over HTTP / in process"


def measure(bench: Bench) -> Found:
    runs, spent, others = _in_process(bench)
    rates: Table = {}
    with bench.server(*FLAGS) as server:
        spend(server.url, WARM, server.processor_seconds)
        for name, requests in WORKLOADS.items():
            found, expected = spend(server.url, requests, server.processor_seconds), runs[name]
            equal = sum(output == other for output, other in zip(found.run.outputs, expected.outputs, strict=True))
            rates[name] = {
                PLAIN: expected.throughput,
                SERVED: found.run.throughput,
                RATIO: found.run.seconds / expected.seconds,
                "equal outputs": equal / len(requests),
                f"others, {PLAIN}": others[name],
                f"others, {SERVED}": found.others,
            }
            spent[f"{name}, {SERVED}"] = found.per_token(1e-3)
        return Found({RATES: rates, SPENT: spent, IDLY: {"": _idle(server)}})


def plots(found: Found) -> Plots:
    groups = {name: {kind: row[kind] for kind in (PLAIN, SERVED)} for name, row in found.figures[RATES].items()}
    return {"over_http": [Bars("Over HTTP against in process", "output tokens/s", groups)]}


def _in_process(bench: Bench) -> tuple[dict[str, Run], Table, dict[str, float]]:
    """The runs of the workloads on an engine in this process, the processor milliseconds of a token, and the cores that
    other work had."""
    run_in_process(bench.engine, WARM, SETUP)
    runs, spent, others = {}, {}, {}
    for name, requests in WORKLOADS.items():
        own = own_seconds()
        with busy_share() as busy:
            runs[name] = run_in_process(bench.engine, requests, SETUP)
        own = own_seconds() - own
        spent[f"{name}, {PLAIN}"] = {"a token": own / runs[name].tokens * 1e3}
        others[name] = busy.without(own)
    return runs, spent, others


def _idle(server: OrcaServer) -> dict[str, float]:
    """Processor seconds in a second without requests, by kind of process."""
    before = server.processor_seconds()
    time.sleep(IDLE)
    spent = by_kind(before, server.processor_seconds())
    return {kind: seconds / IDLE for kind, seconds in spent.items()} | {"in all": sum(spent.values()) / IDLE}
