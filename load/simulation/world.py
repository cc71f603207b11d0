"""A simulated Orca: the real loop and scheduler around engines that only cost time, on virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from load.in_process import LocalPool, Served, Setup
from load.recording import Recording
from load.simulation.cost import Partition
from load.simulation.engine import Cost, VirtualEngine
from load.simulation.specs import MAX_MODEL_LEN
from load.trace import Answer, Request, run_trace
from services.loop.clock import run_in_virtual_time
from services.messages import EngineFigures
from services.scheduling import Knobs

BLOCK_SIZE = 16


def figures_of(num_slots: int, max_model_len: int) -> EngineFigures:
    """Return the figures of an engine whose KV cache holds `num_slots` tokens."""
    return EngineFigures("simulation", max_model_len, num_slots // BLOCK_SIZE, BLOCK_SIZE, 1 << 16, "simulation")


def run_simulated(
    requests: Sequence[Request],
    cost: Cost,
    figures: EngineFigures,
    setup: Setup,
    recording: Recording | None = None,
    accepted: float = 0.0,
) -> list[Answer]:
    """Run `requests` on one engine, to their ends. `accepted`: the probability that a guess of a draft is right."""
    return run_in_virtual_time(_run(requests, VirtualEngine(cost, accepted), figures, setup, recording))


async def _run(
    requests: Sequence[Request],
    engine: VirtualEngine,
    figures: EngineFigures,
    setup: Setup,
    recording: Recording | None,
) -> list[Answer]:
    pool = LocalPool()
    async with recording or contextlib.nullcontext(), Served(pool, [engine], figures, setup, recording=recording):
        return await run_trace(pool, requests)


def orca(requests: Sequence[Request], partition: Partition, max_batch_size: int) -> list[Answer]:
    """Run `requests` on a model of the paper, by our scheduler with as many batches in flight as stages."""
    figures = figures_of(partition.num_slots, MAX_MODEL_LEN)
    knobs = Knobs(max_batch_size, batches_in_flight=partition.stages)
    return run_simulated(requests, partition, figures, Setup(knobs))
