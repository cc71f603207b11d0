"""The report: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from load.bench.engine.machine_rates import MachineRates
from load.bench.engine.measured import Measured
from load.bench.engine.operations import KINDS
from load.bench.engine.perplexity import Perplexity
from load.bench.engine.sampling import Sampling
from load.bench.engine.scoring import Scoring
from load.bench.engine.shares import Shares
from load.markdown import table


@dataclass(slots=True)
class Report:
    """All that a run measured. `load` are load averages of a minute, before and after."""

    machine: str
    numerics: str
    rates: MachineRates
    matrix: tuple[int, int]  # inputs and outputs of the product that the matrix rates are of
    load: list[float]
    phases: list[Measured] = field(default_factory=list)
    shares: Shares | None = None
    sampling: list[Sampling] = field(default_factory=list)
    scoring: list[Scoring] = field(default_factory=list)
    perplexities: list[Perplexity] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """As plain lists and dicts."""
        return {**asdict(self), "phases": [one.json() for one in self.phases]}


def rates_table(rates: MachineRates, matrix: tuple[int, int]) -> str:
    """What the floors are of, and what each way to multiply reached."""
    ways = list(rates.matrix[0].reached)
    rows = [
        [rate.rows, *(f"{value / 1e9:,.1f}" for value in (rate.operations, rate.median, *rate.reached.values()))]
        for rate in rates.matrix
    ]
    inputs, outputs = matrix
    return (
        f"Memory: {rates.bandwidth / 1e9:.1f} GB/s. GFLOP/s of products [rows, {inputs}] x [{inputs}, {outputs}]:\n\n"
        + table(["rows", "taken", "its median", *ways], rows)
    )


def phases_table(phases: list[Measured]) -> str:
    """Milliseconds of an iteration, a mean; of what the floor consists; then what else each phase says."""
    rows = []
    for one in phases:
        cells = [one.floor.seconds, one.seconds, *(one.floor.by_kind[kind] for kind in KINDS)]
        lowest, taken, *kinds = (f"{cell / one.iterations * 1e3:,.2f}" for cell in cells)
        rows.append([one.name, one.iterations, lowest, taken, f"{one.ratio:.2f}", *kinds])
    head = ["phase", "iterations", "floor, ms", "time, ms", "ratio", *(f"floor of {kind}, ms" for kind in KINDS)]
    notes = [
        f"- {one.name}: " + ", ".join(f"{what} {value:,.2f}" for what, value in one.figures.items()) for one in phases
    ]
    return "\n".join([table(head, rows), "", *notes])


def shares_table(shares: Shares) -> str:
    classes = [[name, f"{share:.1%}"] for name, share in shares.classes.items()]
    title = f"An increment iteration at batch {shares.batch}, context {shares.context}:"
    said = f"{title}\n\n{table(['what', 'share'], classes)}"
    if not shares.operations:
        return said
    operations = [[name, f"{calls:,.0f}", f"{share:.1%}"] for name, calls, share in shares.operations]
    return f"{said}\n\nBy torch's profiler:\n\n" + table(["operation", "calls", "share"], operations)
