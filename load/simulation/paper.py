"""The paper's end-to-end evaluation (section 6.2, figures 10 and 11) on its Table 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from load.curves import Curve, curves_panel, median_latency, median_normalized_latency, sweep, table_of
from load.plots import Panel, draw
from load.report import table, tables
from load.simulation import faster_transformer
from load.simulation.cost import TABLE_1, Partition, execution_seconds
from load.simulation.faster_transformer import largest_batch
from load.simulation.world import orca
from load.trace import Answer, Request
from load.workloads import alike, paper_lengths
from services.progress import Bar

HELP = "figures 10 and 11 of the paper: Orca against FasterTransformer"
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)  # shares of the most that a configuration can serve
BEST = ((1, 1), (8, 8))  # (max batch size, micro-batch size) of FasterTransformer, as the paper found
BATCH_SIZES = (1, 8, 16, 32, 64, 128)  # of Orca
HOMOGENEOUS = ((32, 32), (128, 32))  # tokens in and out in section 6.1; the text does not give those of figure 11
BATCHES = (1, 2, 4, 8, 16, 32)  # of the engine alone
OF_BASELINE = 512  # requests of a trace; Orca costs more to simulate

Latency = Callable[[Sequence[Answer]], float]
Models = dict[str, Partition]


def run(out: Path | None) -> str:
    return report(TABLE_1, BATCH_SIZES, OF_BASELINE, out)


def report(models: Models, batch_sizes: Sequence[int], of_baseline: int, out: Path | None) -> str:
    """Figure 10 of these models, figure 11 of the 175B one, and what the engine takes alone."""
    parts, panels = [models_table(models), engines_table(models)], []
    for name, partition in Bar(models.items(), desc="figure 10", unit="models"):
        curves = figure(partition, batch_sizes, of_baseline, paper_lengths, median_normalized_latency)
        parts += tables({f"### Figure 10: {name}": table_of(curves, LOADS, 1e3, "ms/token")})
        panels.append(_panel(name, "median normalized latency, ms/token", curves, 1e3, 12.0))
    if out:
        draw(out / "figure_10.png", panels)
    if partition := models.get("175B"):
        panels = []
        for prompt, output in Bar(HOMOGENEOUS, desc="figure 11", unit="sizes"):
            title = f"175B, all requests {prompt} in and {output} out"
            curves = figure(partition, batch_sizes, of_baseline, partial(alike, prompt, output), median_latency)
            parts += tables({f"### Figure 11: {title}": table_of(curves, LOADS, 1, "s")})
            panels.append(_panel(title, "median latency, s", curves, 1, 8.0))
        if out:
            draw(out / "figure_11.png", panels)
    return "\n\n".join(parts)


def figure(
    partition: Partition,
    batch_sizes: Sequence[int],
    of_baseline: int,
    lengths: Callable[[int], list[Request]],
    latency: Latency,
) -> list[Curve]:
    """The curves of both systems on traces of these lengths; larger batches need longer traces."""
    curves = []
    for max_bs, mbs in BEST:
        if max_bs <= largest_batch(partition):
            serve = partial(faster_transformer.serve, cost=partition, max_batch_size=max_bs, microbatch_size=mbs)
            curves.append(sweep(f"ft({max_bs}, {mbs})", serve, lengths, of_baseline, LOADS, latency))
    for size in batch_sizes:
        serve = partial(orca, partition=partition, max_batch_size=size)
        curves.append(sweep(f"orca({size})", serve, lengths, 96 + 4 * size, LOADS, latency))
    return curves


def models_table(models: Models) -> str:
    head = ["model", "layers", "hidden", "stages", "GPUs a stage", "`n_slots`", "requests of 2,048 tokens"]
    rows = [
        [name, p.model.layers, p.model.hidden, p.stages, p.ranks, f"{p.num_slots:,}", f"{p.num_slots / 2048:.2f}"]
        for name, p in models.items()
    ]
    return table(head, rows)


def engines_table(models: Models) -> str:
    """What figure 9 measures: a batch of equal requests, one iteration after the other."""
    head = ["ms for each generated token, batch of", *map(str, BATCHES)]
    rows = [
        [name, *(f"{execution_seconds(p, b, 128, 32) / 32 * 1e3:.1f}" for b in BATCHES)] for name, p in models.items()
    ]
    return "The engine alone, 128 tokens in and 32 out, no pipelining (figure 9):\n\n" + table(head, rows)


def _panel(title: str, y_label: str, curves: list[Curve], unit: float, most: float) -> Panel:
    y_most = most * unit * min(curve.points[0].latency for curve in curves)
    return curves_panel(title, y_label, curves, unit, "ft", y_most=y_most, log_x=True)
