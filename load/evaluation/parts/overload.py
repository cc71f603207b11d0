"""More requests than the server can answer: answers per second and waiting, at multiples of its capacity."""

from __future__ import annotations

import asyncio

from load.bench.figures import Table
from load.bench.overload import PATIENCE, TOKENS, Results, capacity, open_loop
from load.bench.vitals import SETTLED
from load.evaluation.bench import Bench, Found, Plots
from load.plots import Line, Panel
from load.report import quantile

HELP = "arrivals at 0.5 to 4 times what the server can answer"
TIMES = (0.5, 1.0, 2.0, 4.0)
CLIENTS = 32  # that keep the batch full while the capacity is measured
LEAST = 10.0  # seconds in which it is measured
TITLE = f"Requests of {TOKENS} tokens out; clients leave after {PATIENCE:.0f} s"
ARRIVING, ANSWERED = "arriving, requests/s", "answered, requests/s"
MEDIAN, P99 = "median TTFT, s", "P99 TTFT, s"


def measure(bench: Bench) -> Found:
    rows: Table = {}
    with bench.server() as server:
        seconds = max(LEAST, bench.seconds)
        most = asyncio.run(capacity(server.url, CLIENTS, seconds))
        if not most:
            raise RuntimeError(f"{CLIENTS} clients had no answer of {TOKENS} tokens in {seconds} s")
        for times in TIMES:
            results, half = asyncio.run(open_loop(server.url, times * most, 2 * bench.seconds))
            rows[f"{times:g} times the capacity"] = cells(results, times * most, half)
            server.until_idle(SETTLED)
    return Found({TITLE: rows}, {"capacity": most})


def cells(results: Results, rate: float, answered: float) -> dict[str, float]:
    """`answered`: requests/s in the second half of the time."""
    first = {MEDIAN: quantile(results.first, 0.5), P99: quantile(results.first, 0.99)} if results.first else {}
    counts = {"sent": results.sent, "refused": len(results.refused), "left": results.left, "failed": results.failed}
    return {ARRIVING: rate, ANSWERED: answered, **first, **{name: float(count) for name, count in counts.items()}}


def plots(found: Found) -> Plots:
    rows = found.figures[TITLE].values()
    rates, answered = [row[ARRIVING] for row in rows], [row[ANSWERED] for row in rows]
    served = [row for row in rows if MEDIAN in row]
    most = found.series["capacity"]
    lines = [
        Line("answered", rates, answered),
        Line("capacity", [0.0, max(rates)], [most, most], dashed=True, color="C7"),
    ]
    waits = [Line(name, [row[ARRIVING] for row in served], [row[name] for row in served]) for name in (MEDIAN, P99)]
    return {
        "overload": [
            Panel("Answers under overload", ARRIVING, ANSWERED, lines, x_least=0.0),
            Panel("Waiting under overload", ARRIVING, "seconds to the first token", waits, x_least=0.0),
        ]
    }
