"""The paper's end-to-end evaluation (section 6.2, figures 10 and 11) on its Table 1."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from load.curves import Curve, sweep
from load.markdown import table
from load.simulation import faster_transformer, paper_tables
from load.simulation.cost import Partition
from load.simulation.outcome import Served, median_normalized_latency, request_throughput
from load.simulation.table1 import TABLE_1
from load.simulation.traces import Arrival, Size, at_once, paper
from load.simulation.world import Policy, serve_trace

HELP = "figures 10 and 11 of the paper: Orca against FasterTransformer"
BEST = ((1, 1), (8, 8))  # (max batch size, micro-batch size) of FasterTransformer, as the paper found
OTHERS = ((2, 2), (4, 4), (8, 1), (8, 2), (8, 4), (16, 4), (16, 8), (16, 16), (32, 16), (32, 32))
MEAN_INPUT = 272  # tokens of a request of section 6.2's trace
MEAN_TOKENS = 336  # of a request of section 6.2's trace, in and out
HOMOGENEOUS = (Size(32, 32), Size(128, 32))  # the requests of section 6.1; the text has none for figure 11

Latency = Callable[[list[Served]], float]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is simulated: Orca's max batch sizes, and requests of a trace, more where more run at once."""

    batch_sizes: tuple[int, ...] = (1, 8, 16, 32, 64, 128)
    least: int = 96
    each: int = 4
    baseline: int = 512  # for FasterTransformer, which costs less to simulate

    @property
    def largest(self) -> int:
        return self.requests(max(self.batch_sizes))

    def requests(self, batch_size: int) -> int:
        return self.least + self.each * batch_size


def run(out: Path | None) -> str:
    return report(TABLE_1, Scale(), out)


def report(models: dict[str, Partition], scale: Scale, out: Path | None) -> str:
    curves = {name: figure_10(partition, scale) for name, partition in models.items()}
    parts = [paper_tables.models(models), paper_tables.engines(models)]
    parts += [f"### Figure 10: {name}\n\n{paper_tables.curves(of_model)}" for name, of_model in curves.items()]
    parts += [f"### Throughput at the same latency\n\n{paper_tables.gains(models, curves)}"]
    parts += [f"### Uneven batches\n\n{uneven_batches(models, scale.largest)}"]
    parts += [f"### Peaks of FasterTransformer\n\n{paper_tables.peaks(models, BEST + OTHERS, paper(scale.baseline))}"]
    inputs_alike = [Size(MEAN_INPUT, size.output) for size in paper(scale.baseline)]
    title = f"### Peaks of FasterTransformer, all inputs of {MEAN_INPUT} tokens"
    parts += [f"{title}\n\n{paper_tables.peaks(models, BEST, inputs_alike)}"]
    if out:
        paper_tables.plot_figure_10(out / "figure_10.png", curves)
    if "175B" in models:
        alike = {size: figure_11(models["175B"], scale, size) for size in HOMOGENEOUS}
        for size, of_size in alike.items():
            title = f"### Figure 11: 175B, all requests {size.prompt} in and {size.output} out"
            parts += [f"{title}\n\n{paper_tables.curves(of_size)}"]
        if out:
            paper_tables.plot_figure_11(out / "figure_11.png", alike)
    return "\n\n".join(parts)


def figure_10(partition: Partition, scale: Scale) -> list[Curve]:
    """Median normalized latency against throughput, on the trace of section 6.2."""
    return _figure(partition, scale, paper, median_normalized_latency)


def figure_11(partition: Partition, scale: Scale, size: Size) -> list[Curve]:
    """Median latency against throughput, all requests alike."""

    def median(served: list[Served]) -> float:
        return statistics.median(one.latency for one in served)

    return _figure(partition, scale, lambda requests: [size] * requests, median)


def uneven_batches(models: dict[str, Partition], requests: int) -> str:
    """Peaks where memory holds fewer requests than `max_bs` for each stage: then the first batch takes all it may, and
    the others what is left."""
    trace = at_once(paper(requests))
    rows = []
    for name, partition in models.items():
        if partition.stages == 1:
            continue
        held = partition.num_slots // MEAN_TOKENS
        for max_bs in sorted((64, held // partition.stages, 128)):
            peak = request_throughput(serve_trace(trace, partition, _policy(partition, max_bs)))
            rows.append([name, partition.stages, held, max_bs, f"{peak:.2f}"])
    return table(["model", "stages", "requests that fit", "max_bs", "peak, requests/s"], rows)


def _figure(partition: Partition, scale: Scale, sizes: Callable[[int], list[Size]], latency: Latency) -> list[Curve]:
    fitting = [best for best in BEST if best[0] <= faster_transformer.largest_batch(partition)]
    baseline = [_ft(partition, *best, sizes(scale.baseline), latency) for best in fitting]
    return baseline + [_orca(partition, n, sizes(scale.requests(n)), latency) for n in scale.batch_sizes]


def _orca(partition: Partition, max_bs: int, sizes: list[Size], latency: Latency) -> Curve:
    policy = _policy(partition, max_bs)
    return sweep(f"orca({max_bs})", sizes, lambda trace: serve_trace(trace, partition, policy), latency)


def _policy(partition: Partition, max_bs: int) -> Policy:
    return Policy(max_bs, partition.num_slots, partition.model.max_model_len, batches_in_flight=partition.stages)


def _ft(partition: Partition, max_bs: int, mbs: int, sizes: list[Size], latency: Latency) -> Curve:
    def serve(trace: list[Arrival]) -> list[Served]:
        return faster_transformer.serve(trace, partition, max_bs, mbs)

    return sweep(f"ft({max_bs}, {mbs})", sizes, serve, latency)
