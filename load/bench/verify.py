"""`python -m load.bench.verify [N]`: the paper's trace over HTTP in float32, compared with stock `generate()`.

Prints a line for each request that differs, and ends with status 1 if one does. All 64 take some minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from load.options import Options
from load.over_http import run_over_http
from load.server import OrcaServer
from load.stock import alone, load_stock
from load.workloads import paper
from services.progress import Bar


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m load.bench.verify", description=__doc__)
    parser.add_argument("n", nargs="?", type=int, default=64, help="number of requests of the trace")
    parser.add_argument("--model", default="default", help="as `orca serve --model`")
    options = parser.parse_args()
    requests = paper(options.n)
    with (
        tempfile.TemporaryDirectory() as folder,
        OrcaServer(Path(folder), "--model", options.model, "--dtype", "float32", "--preset", "paper") as server,
    ):
        run = asyncio.run(run_over_http(server.url, requests))
        metrics = server.metrics()
    print(
        f"{len(requests)} requests over HTTP in {run.seconds:.1f} s, peak batch {metrics['orca:peak_batch_size']:.0f}, "
        f"{metrics['orca:mixed_iterations_total']:.0f} of {metrics['orca:iterations_total']:.0f} iterations mixed",
        flush=True,
    )
    model = load_stock(Options(options.model, device="cpu"))
    compared = enumerate(Bar(run.answers, desc="generate()", unit="requests"))
    different = [i for i, answer in compared if alone(model, answer.request) != answer.tokens]
    for i in different:
        print(f"request {i} differs: {len(requests[i].prompt)} tokens in, {requests[i].max_new_tokens} out")
    print(f"{len(requests) - len(different)} of {len(requests)} equal stock generate()")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
