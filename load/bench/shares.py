"""Where the time of an increment iteration goes, measured by the kernels' own clock or by torch's profiler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from load.bench.batches import Batches
from load.report import table
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.engine import Engine

ITERATIONS = 4
FILLING = ("uniform_", "distribution")  # operations that fill the cache before the iterations
NAME = 72  # characters of an operation's name that are shown
SHOWN = 16  # operations


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of an iteration with this batch and context by part of the work, the largest first."""

    batch: int
    context: int
    shares: dict[str, float]


def measure_shares(engine: Engine, batch: int, context: int) -> Shares:
    """Measure increment iterations. The kernels' clock costs nothing and knows no operations; the profiler's own cost
    is included, mostly outside of operations."""
    Batches(engine).mixed(batch, context, 0, 0, 2)
    decoder = engine.decoder
    found = _from_kernels(engine, decoder, batch, context) if isinstance(decoder, CpuDecoder) else {}
    found = found or _profiled(engine, batch, context)
    return Shares(batch, context, dict(sorted(found.items(), key=lambda entry: -entry[1])))


def _from_kernels(engine: Engine, decoder: CpuDecoder, batch: int, context: int) -> dict[str, float]:
    before = decoder.seconds()
    ran = Batches(engine).mixed(batch, context, 0, 0, ITERATIONS)
    whole = sum(one.seconds for one in ran)
    classes = {name: (seconds - before[name]) / whole for name, seconds in decoder.seconds().items()}
    return classes | {"Python and the sampler": 1.0 - sum(classes.values())}


def _profiled(engine: Engine, batch: int, context: int) -> dict[str, float]:
    """By operation; on CUDA the times are those of the kernels."""
    batches = Batches(engine)
    on_cuda = torch.cuda.is_available() and "cuda" in engine.figures.numerics
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiled:
        ran = batches.mixed(batch, context, 0, 0, ITERATIONS)
    whole, found = sum(one.seconds for one in ran), dict[str, float]()
    for event in profiled.key_averages():
        if on_cuda and event.device_type != DeviceType.CUDA:  # what it launched has an entry of its own
            continue
        own = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if not any(word in event.key for word in FILLING):
            found[event.key[:NAME]] = found.get(event.key[:NAME], 0.0) + own / 1e6 / whole
    outside = max(0.0, 1.0 - sum(found.values()))
    return {"Python and the cost of starting an operation": outside} | found


def shares_table(shares: Shares) -> str:
    rows = [[name, f"{share:.1%}"] for name, share in list(shares.shares.items())[:SHOWN]]
    title = f"An increment iteration at batch {shares.batch}, context {shares.context}:"
    return f"{title}\n\n{table(['what', 'share'], rows)}"
