"""What traces cost: processor time of requests and tokens with and without `--otlp-traces-endpoint`."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from load.bench.spent import spend
from load.options import Options
from load.processes import CLIENT
from load.report import table
from load.server import OrcaServer
from load.trace import Request
from load.traces.collector import Collector

ROUNDS = 7
PROMPT = 32
LONG, SHORT = [Request([5] * PROMPT, 512)] * 32, [Request([5] * PROMPT, 1)] * 512
FLAGS = ("--null-engine", "--kv-blocks", "100000", "--gateways", "1", "--no-prefix-caching")


def run(options: Options) -> str:
    with ExitStack() as stack:
        collector = stack.enter_context(Collector())
        endpoint = ("--otlp-traces-endpoint", collector.endpoint)
        servers = {
            name: stack.enter_context(OrcaServer(Path(folder), "--model", options.model, *FLAGS, *flags))
            for name, flags in {"off": (), "on": endpoint}.items()
            for folder in [stack.enter_context(tempfile.TemporaryDirectory())]
        }
        found: dict[str, dict[str, list[float]]] = {}
        for number in range(ROUNDS + 1):  # the first one warms up
            for name, server in servers.items():
                for load, requests in {"a token of 32 streams": LONG, "a request of one token": SHORT}.items():
                    kinds = _spent(server, requests, len(requests) if requests is SHORT else 512 * len(requests))
                    for kind, micros in kinds.items() if number else ():
                        found.setdefault(f"{load}, traces {name}", {}).setdefault(kind, []).append(micros)
        spans = len(collector.spans)
    columns = list(next(iter(found.values())))
    rows = [
        [name, *(f"{statistics.median(of):,.1f} ± {statistics.stdev(of):,.1f}" for of in each.values())]
        for name, each in sorted(found.items())
    ]
    return (
        "Processor time by kind of process, µs: medians and standard deviations of "
        f"{ROUNDS} rounds in turn, with an engine that answers at once. The collector received {spans:,} spans.\n\n"
        + table(["", *columns], rows)
    )


def _spent(server: OrcaServer, requests: list[Request], units: int) -> dict[str, float]:
    """Processor microseconds of each unit by kind of process of the server, and in all."""
    seconds = {
        kind: s for kind, s in spend(server.url, requests, server.processor_seconds).seconds.items() if kind != CLIENT
    }
    return {kind: s / units * 1e6 for kind, s in (seconds | {"all": sum(seconds.values())}).items()}
