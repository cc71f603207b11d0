"""Where the time of an increment iteration goes, measured by the kernels' own clock or by torch's profiler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from load.bench.engine.batches import Batches
from load.report import table
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine

ITERATIONS = 4
OUTSIDE = "Python and the cost of starting an operation"

# the class of an operation by the last part of its name; all others are "small operations"
CLASSES = {
    "projections and output": ("mm", "addmm", "bmm", "linear", "matmul", "mkldnn_linear", "_mkl_linear"),
    "attention": (),
    "KV written and gathered": ("index_select", "index_copy_", "index_fill_"),
    "sampler": ("max", "amax", "argmax", "topk", "sort", "isfinite", "log_softmax", "cumsum"),
}
# the class by a part of the name, for CUDA's kernels
WITHIN = {
    "attention": ("scaled_dot_product", "flash", "fmha", "_attend"),
    "projections and output": ("gemm", "gemv", "splitK", "nvjet", "cutlass", "_multiply"),
    "KV written and gathered": ("_place", "index_put", "indexSelect"),
    "sampler": ("MaxOps", "MaxNan", "ArgMax", "topk", "Sort", "sort"),
}
FILLING = ("uniform_", "distribution")  # operations that fill the cache before the iterations
NAME = 72  # characters of a kernel's name that are shown


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of an iteration with this batch and context by class, which add up to 1, and the costliest operations
    as (name, calls per iteration, share). The profiler's own cost is included, mostly in `OUTSIDE`. The kernels' own
    clock costs nothing and knows no operations."""

    batch: int
    context: int
    classes: dict[str, float]
    operations: list[tuple[str, float, float]]


def measure_shares(engine: Engine, batch: int, context: int) -> Shares:
    """Measure increment iterations."""
    Batches(engine).increments(batch, context, 2)
    if isinstance(engine.decoder, CpuDecoder):
        return _from_kernels(engine, engine.decoder, batch, context)
    return _profiled(engine, batch, context)


def _from_kernels(engine: Engine, decoder: CpuDecoder, batch: int, context: int) -> Shares:
    before = decoder.seconds()
    ran = Batches(engine).increments(batch, context, ITERATIONS)
    whole = sum(one.seconds for one in ran)
    classes = {name: (seconds - before[name]) / whole for name, seconds in decoder.seconds().items()}
    return Shares(batch, context, classes | {"Python and the sampler": 1.0 - sum(classes.values())}, [])


def _profiled(engine: Engine, batch: int, context: int) -> Shares:
    """On CUDA the times are those of the kernels."""
    batches = Batches(engine)
    on_cuda = torch.cuda.is_available() and "cuda" in engine.figures.numerics
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiled:
        ran = batches.increments(batch, context, ITERATIONS)
    whole = sum(one.seconds for one in ran)
    times: list[tuple[str, int, float]] = []
    for event in profiled.key_averages():
        if on_cuda and event.device_type != DeviceType.CUDA:  # what it launched has an entry of its own
            continue
        own = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if not any(word in event.key for word in FILLING):
            times.append((event.key, event.count, own / 1e6 / whole))
    classes = dict.fromkeys([*CLASSES, "small operations"], 0.0)
    for name, _, share in times:
        classes[_class(name)] += share
    classes[OUTSIDE] = max(0.0, 1.0 - sum(classes.values()))
    costliest = sorted(times, key=lambda entry: -entry[2])[:12]
    shown = [(name[:NAME], count / ITERATIONS, share) for name, count, share in costliest]
    return Shares(batch, context, classes, shown)


def _class(operation: str) -> str:
    name = operation.rpartition("::")[2]
    exact = (kind for kind, names in CLASSES.items() if name in names)
    within = (kind for kind, words in WITHIN.items() if any(word in operation for word in words))
    return next(exact, None) or next(within, "small operations")


def shares_table(shares: Shares) -> str:
    classes = [[name, f"{share:.1%}"] for name, share in shares.classes.items()]
    title = f"An increment iteration at batch {shares.batch}, context {shares.context}:"
    text = f"{title}\n\n{table(['what', 'share'], classes)}"
    if not shares.operations:
        return text
    operations = [[name, f"{calls:,.0f}", f"{share:.1%}"] for name, calls, share in shares.operations]
    return f"{text}\n\nBy torch's profiler:\n\n" + table(["operation", "calls", "share"], operations)
