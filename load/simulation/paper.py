"""The paper's end-to-end evaluation (section 6.2, figures 10 and 11) on its Table 1."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from load.curves import (
    LOADS,
    Curve,
    curves_panel,
    median_normalized_latency,
    sweep,
)
from load.plots import draw
from load.report import table
from load.simulation import faster_transformer
from load.simulation.cost import TABLE_1, Partition, execution_seconds
from load.simulation.faster_transformer import largest_batch
from load.simulation.world import Policy, run_simulated
from load.trace import Answer, Request
from load.workloads import paper_lengths, sized
from services.progress import Bar

HELP = "figures 10 and 11 of the paper: Orca against FasterTransformer"
BEST = ((1, 1), (8, 8))  # (max batch size, micro-batch size) of FasterTransformer, as the paper found
HOMOGENEOUS = ((32, 32), (128, 32))  # tokens in and out in section 6.1; the text does not give those of figure 11
SHOWN = (0.1, 0.5, 0.7, 0.9, 1.0)  # of LOADS
BATCHES = (1, 2, 4, 8, 16, 32)  # of the engine alone

Latency = Callable[[list[Answer]], float]
Models = dict[str, Partition]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is simulated: Orca's max batch sizes, and the requests of a trace, more of them for larger batches."""

    batch_sizes: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
    least: int = 96
    each: int = 4
    baseline: int = 512  # for FasterTransformer, which costs less to simulate

    def requests(self, batch_size: int) -> int:
        return self.least + self.each * batch_size


def run(out: Path | None) -> str:
    return report(TABLE_1, Scale(), out)


def report(models: Models, scale: Scale, out: Path | None) -> str:
    measured = Bar(models.items(), desc="figure 10", unit="models")
    curves = {name: figure_10(partition, scale) for name, partition in measured}
    parts = [models_table(models), engines_table(models)]
    parts += [f"### Figure 10: {name}\n\n{curves_table(of_model)}" for name, of_model in curves.items()]
    if out:
        plot_figure_10(out / "figure_10.png", curves)
    if "175B" in models:
        sizes = Bar(HOMOGENEOUS, desc="figure 11", unit="sizes")
        alike = {size: figure_11(models["175B"], scale, *size) for size in sizes}
        for (prompt, output), of_size in alike.items():
            title = f"### Figure 11: 175B, all requests {prompt} in and {output} out"
            parts += [f"{title}\n\n{curves_table(of_size)}"]
        if out:
            plot_figure_11(out / "figure_11.png", alike)
    return "\n\n".join(parts)


def figure_10(partition: Partition, scale: Scale) -> list[Curve]:
    """Median normalized latency against throughput, on the trace of section 6.2."""
    return _figure(partition, scale, paper_lengths, median_normalized_latency)


def figure_11(partition: Partition, scale: Scale, prompt: int, output: int) -> list[Curve]:
    """Median latency against throughput, all requests alike."""

    def median(answers: list[Answer]) -> float:
        return statistics.median(answer.latency for answer in answers)

    return _figure(partition, scale, lambda requests: [sized(prompt, output)] * requests, median)


def _figure(
    partition: Partition, scale: Scale, requests: Callable[[int], list[Request]], latency: Latency
) -> list[Curve]:
    fitting = [best for best in BEST if best[0] <= largest_batch(partition)]
    baseline = [_ft(partition, *best, requests(scale.baseline), latency) for best in fitting]
    return baseline + [_orca(partition, n, requests(scale.requests(n)), latency) for n in scale.batch_sizes]


def _orca(partition: Partition, max_bs: int, requests: list[Request], latency: Latency) -> Curve:
    policy = _policy(partition, max_bs)
    return sweep(f"orca({max_bs})", requests, lambda trace: run_simulated(trace, partition, policy), latency)


def _policy(partition: Partition, max_bs: int) -> Policy:
    return Policy(max_bs, partition.num_slots, partition.model.max_model_len, batches_in_flight=partition.stages)


def _ft(partition: Partition, max_bs: int, mbs: int, requests: list[Request], latency: Latency) -> Curve:
    def serve(trace: list[Request]) -> list[Answer]:
        return faster_transformer.serve(trace, partition, max_bs, mbs)

    return sweep(f"ft({max_bs}, {mbs})", requests, serve, latency)


# --- tables and plots ----------------------------------------------------------------------------------------


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
    rows = [[name, *(f"{_token_seconds(p, batch) * 1e3:.1f}" for batch in BATCHES)] for name, p in models.items()]
    return "The engine alone, 128 tokens in and 32 out, no pipelining (figure 9):\n\n" + table(head, rows)


def curves_table(curves: list[Curve]) -> str:
    """The points of each curve; the loads are shares of a configuration's own peak."""
    head = ["", "peak, requests/s", *(f"{load:.0%} load: requests/s, ms" for load in SHOWN)]
    rows = []
    for curve in curves:
        points = [curve.points[LOADS.index(load)] for load in SHOWN]
        cells = [f"{point.throughput:.2f}, {point.latency * 1e3:,.0f}" for point in points]
        rows.append([curve.label, f"{curve.peak:.2f}", *cells])
    return table(head, rows)


def plot_figure_10(path: Path, of_models: dict[str, list[Curve]]) -> None:
    panels = []
    for name, curves in of_models.items():
        y_most = 12e3 * min(curve.points[0].latency for curve in curves)
        panels.append(curves_panel(name, "median normalized latency, ms/token", curves, 1e3, y_most, "ft"))
    draw(path, panels)


def plot_figure_11(path: Path, of_sizes: dict[tuple[int, int], list[Curve]]) -> None:
    panels = []
    for (prompt, output), curves in of_sizes.items():
        y_most = 8 * min(curve.points[0].latency for curve in curves)
        panels.append(curves_panel(f"175B, {prompt} in, {output} out", "median latency, s", curves, 1, y_most, "ft"))
    draw(path, panels)


def _token_seconds(partition: Partition, batch: int) -> float:
    """Seconds for each generated token (the requests of figure 9)."""
    return execution_seconds(partition, batch, 128, 32) / 32
