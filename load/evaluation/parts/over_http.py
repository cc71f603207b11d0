"""What HTTP, gateways, pool and Ray cost: the paper's trace and a lone stream over HTTP and in process."""

from __future__ import annotations

from load.bench.parts import over_http
from load.evaluation.bench import Bench, Found, Plots
from load.plots import Bars

HELP = "the paper's trace and a lone stream over HTTP, beside the same engine in process"


def measure(bench: Bench) -> Found:
    bench.release()
    return Found(over_http.measure(bench.options))


def plots(found: Found) -> Plots:
    groups = {
        name: {kind: row[kind] for kind in (over_http.PLAIN, over_http.SERVED)}
        for name, row in found.figures[over_http.RATES].items()
    }
    return {"over_http": [Bars("Over HTTP against in process", "output tokens/s", groups)]}
