"""The paper's figures as tables and plots."""

from __future__ import annotations

from pathlib import Path

from load.curves import LOADS, Curve, best_at
from load.markdown import table
from load.simulation import faster_transformer
from load.simulation.cost import Partition
from load.simulation.outcome import request_throughput
from load.simulation.plots import Line, Panel, draw
from load.simulation.table1 import execution_seconds
from load.simulation.traces import Size, at_once

SHOWN = (0.1, 0.5, 0.7, 0.9, 1.0)  # of LOADS
BATCHES = (1, 2, 4, 8, 16, 32)  # of the engine alone
PAPERS_LATENCY = 0.190  # seconds (section 6.2)


def models(partitions: dict[str, Partition]) -> str:
    head = ["model", "layers", "hidden", "stages", "GPUs a stage", "`n_slots`", "largest batch of FasterTransformer"]
    rows = []
    for name, p in partitions.items():
        most = faster_transformer.largest_batch(p)
        rows.append([name, p.model.layers, p.model.hidden, p.stages, p.ranks, f"{p.num_slots:,}", most])
    return table(head, rows)


def engines(partitions: dict[str, Partition]) -> str:
    """What figure 9 measures: a batch of equal requests, one iteration after the other."""
    head = ["ms for each generated token, batch of", *map(str, BATCHES)]
    rows = [[name, *(f"{_execution(p, batch) * 1e3:.1f}" for batch in BATCHES)] for name, p in partitions.items()]
    return "The engine alone, 128 tokens in and 32 out, no pipelining (figure 9):\n\n" + table(head, rows)


def curves(of_model: list[Curve]) -> str:
    """Points of each curve; the loads are shares of a configuration's own peak."""
    head = ["", "peak, requests/s", *(f"{load:.0%} load: requests/s, ms" for load in SHOWN)]
    rows = []
    for curve in of_model:
        points = [curve.points[LOADS.index(load)] for load in SHOWN]
        cells = [f"{point.throughput:.2f}, {point.latency * 1e3:,.0f}" for point in points]
        rows.append([curve.label, f"{curve.peak:.2f}", *cells])
    return table(head, rows)


def gains(partitions: dict[str, Partition], of_models: dict[str, list[Curve]]) -> str:
    """The best configuration of each system at the same median normalized latency."""
    head = ["model", "at, ms", "what that is", "FasterTransformer, requests/s", "Orca, requests/s", "ratio"]
    rows = []
    for name, of_model in of_models.items():
        levels = {"the paper's level for 175B": PAPERS_LATENCY}
        for batch in (1, 16):
            levels[f"twice the engine alone, batch of {batch}"] = 2 * _execution(partitions[name], batch)
        for what, level in levels.items():
            ft, orca = (_best(of_model, system, level) for system in ("ft", "orca"))
            ratio = f"{orca[0] / ft[0]:.1f}" if ft[0] else "-"
            rows.append([name, f"{level * 1e3:.0f}", what, f"{ft[0]:.3f} {ft[1]}", f"{orca[0]:.2f} {orca[1]}", ratio])
    return table(head, rows)


def peaks(partitions: dict[str, Partition], configurations: tuple[tuple[int, int], ...], sizes: list[Size]) -> str:
    """Requests/s of FasterTransformer at most, all requests there at once; empty where the batch does not fit."""
    trace = at_once(sizes)
    rows = []
    for name, p in partitions.items():
        most = faster_transformer.largest_batch(p)
        cells = [
            f"{request_throughput(faster_transformer.serve(trace, p, *of)):.2f}" if of[0] <= most else ""
            for of in configurations
        ]
        rows.append([name, *cells])
    return table(["(max_bs, mbs)", *map(str, configurations)], rows)


def plot_figure_10(path: Path, of_models: dict[str, list[Curve]]) -> None:
    panels = []
    for name, of_model in of_models.items():
        y_most = 12e3 * min(curve.points[0].latency for curve in of_model)
        panels.append(panel(name, "median normalized latency, ms/token", of_model, 1e3, y_most))
    draw(path, panels)


def plot_figure_11(path: Path, of_sizes: dict[Size, list[Curve]]) -> None:
    panels = []
    for size, of_size in of_sizes.items():
        y_most = 8 * min(curve.points[0].latency for curve in of_size)
        panels.append(panel(f"175B, {size.prompt} in, {size.output} out", "median latency, s", of_size, 1, y_most))
    draw(path, panels)


def panel(title: str, y_label: str, of_panel: list[Curve], unit: float, y_most: float, baseline: str = "ft") -> Panel:
    """Latencies times `unit` over throughput. Curves whose labels begin with `baseline` are dashed."""
    lines = []
    for curve in of_panel:
        x, y = [p.throughput for p in curve.points], [unit * p.latency for p in curve.points]
        lines.append(Line(curve.label, x, y, dashed=curve.label.startswith(baseline)))
    return Panel(title, "throughput, requests/s", y_label, lines, y_most, log_x=True)


def _execution(partition: Partition, batch: int) -> float:
    """Seconds for each generated token (figure 9's requests)."""
    return execution_seconds(partition, batch, 128, 32) / 32


def _best(of_model: list[Curve], system: str, level: float) -> tuple[float, str]:
    return best_at((curve for curve in of_model if curve.label.startswith(system)), level)
