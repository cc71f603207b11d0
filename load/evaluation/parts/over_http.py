"""What HTTP, gateways, pool and Ray cost: the paper's trace and a lone stream in process, then over HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from load.evaluation.bench import Bench, Found, Spent, spend, spend_over_http, usual
from load.in_process import Setup, run_in_process
from load.processes import by_kind
from load.report import Table
from load.server import OrcaServer
from load.trace import Request
from load.workloads import paper, prompted, single
from services.engine.startup.devices import choose_device
from services.scheduling import Knobs

HELP = "the paper's trace and a lone stream over HTTP, beside the same engine in process"
MAX_BATCH_SIZE = 32
IDLE = 5.0  # seconds
SHARE = 0.25  # of `Bench.seconds`, in which a workload is run again
# "others": the cores that other work on the machine had meanwhile; a run is disturbed where it is not near 0
RATES, SPENT, IDLY = "Output tokens/s", "Processor time of a token, ms", "Idle server, share of a core"
PLAIN, SERVED, RATIO = "in process", "over HTTP", "seconds over HTTP / in process"


def measure(bench: Bench) -> Found:
    lookahead = int(choose_device(bench.options.settings).type != "cpu")  # what a server chooses itself
    setup = Setup(Knobs(MAX_BATCH_SIZE, lookahead=lookahead))
    # as in process; with prefix caching a later run would find the prompts of the warm-up in the cache
    flags = ("--preset", "paper", "--max-batch-size", str(MAX_BATCH_SIZE), "--lookahead", str(lookahead))
    workloads, warm = {"paper": prompted(paper(bench.shorter(64))), "single": single()}, prompted(paper(4, 9))
    rates: Table = {}
    run_in_process(bench.engine, warm, setup)
    seconds = SHARE * bench.seconds

    def in_process(requests: Sequence[Request]) -> Spent:
        return usual(lambda: spend(partial(run_in_process, bench.engine, requests, setup)), seconds)

    plain = {name: in_process(requests) for name, requests in workloads.items()}
    spent = {f"{name}, {PLAIN}": {"a token": one.per_token(1e-3)["a token"]} for name, one in plain.items()}
    with bench.server(*flags) as server:
        spend_over_http(server, warm)
        for name, requests in workloads.items():
            served, expected = usual(partial(spend_over_http, server, requests), seconds), plain[name].run
            equal = sum(output == other for output, other in zip(served.run.outputs, expected.outputs, strict=True))
            rates[name] = {
                PLAIN: expected.throughput,
                SERVED: served.run.throughput,
                RATIO: served.run.seconds / expected.seconds,
                "equal outputs": equal / len(requests),
                f"others, {PLAIN}": plain[name].others,
                f"others, {SERVED}": served.others,
            }
            spent[f"{name}, {SERVED}"] = served.per_token(1e-3)
        return Found({RATES: rates, SPENT: spent, IDLY: {"": _idle(server)}})


def _idle(server: OrcaServer) -> dict[str, float]:
    """Processor seconds in a second without requests, by kind of process."""
    before = server.processor_seconds()
    time.sleep(IDLE)
    spent = by_kind(before, server.processor_seconds())
    return {kind: seconds / IDLE for kind, seconds in spent.items()} | {"in all": sum(spent.values()) / IDLE}
