"""What LoRA adapters cost: increments of a full batch with several adapters, beside increments without."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

from load.bench.batches import Batches
from load.bench.bench import Bench, PartResult
from load.options import load_as_served
from load.random_adapter import write_adapter
from load.report import table
from services.adapters.peft import check
from services.adapters.store import folder_of
from services.models.linears import load_linears

RANK, BATCH, CONTEXT, TURNS = 16, 32, 128, 2
COUNTS = (0, 1, 4, 16)
GOAL = 1.25  # times the increments without adapters, for up to four


def adapters(bench: Bench) -> PartResult:
    """Processor time of an increment, which other processes on this machine do not change as they change real time."""
    if bench.folder is None:
        return PartResult("Random weights have no folder: name a --model.", [])
    linears = load_linears(bench.folder, bench.options.cache_dir)
    with tempfile.TemporaryDirectory() as files:
        digests = [f"{i:064x}" for i in range(max(COUNTS))]
        for seed, digest in enumerate(digests):
            write_adapter(folder_of(Path(files), digest), linears, seed, RANK)
        own = check(folder_of(Path(files), digests[0]), linears).bytes
        engine = load_as_served(
            bench.folder, replace(bench.settings, adapters=Path(files), adapter_bytes=len(digests) * own)
        )
        took: dict[int, float] = {}
        for _, count in product(range(1 + TURNS), COUNTS):  # of the first turn, loading takes most of the time
            batches = Batches(engine, adapters=digests[:count])
            began = time.process_time()
            batches.mixed(BATCH, bench.context(CONTEXT), 0, 0, bench.scale.steps)
            seconds = (time.process_time() - began) / bench.scale.steps
            took[count] = min(took.get(count, seconds), seconds)
    all_bytes = {count: (engine.decoder.memory + count * own) / engine.decoder.memory for count in COUNTS}
    goals = {count: GOAL if 0 < count <= 4 else "" for count in COUNTS}
    rows = [[n, f"{took[n] * 1e3:,.1f}", f"{took[n] / took[0]:.2f}", goals[n], f"{all_bytes[n]:.2f}"] for n in COUNTS]
    head = [f"adapters of rank {RANK}", "processor time, ms", "times none", "goal", "bytes, times none"]
    return PartResult(table(head, rows), [dict(zip(head, row, strict=True)) for row in rows])
