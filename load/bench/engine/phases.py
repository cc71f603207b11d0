"""The phases: what the engine is timed at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from load.bench.engine.batches import Batches
from load.bench.engine.floor import floor
from load.bench.engine.follower import Follower
from load.bench.engine.machine_rates import MachineRates
from load.bench.engine.measured import USUAL, Measured, alike
from load.bench.engine.model_shape import ModelShape
from load.in_process import Setup, run_trace
from load.workloads import Job, paper, single
from services.engine.engine import Engine
from services.scheduling import Knobs

MAX_BATCH_SIZE = 32
BATCHES = (1, 8, 32)  # of increment iterations
CONTEXT = 512  # their tokens, and those of a prompt
STEPS = 16  # increment iterations
INITIATIONS = (512, 2048)  # tokens of an iteration
TIMES = 3  # iterations of each


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: an engine, the shape of its model, the rates of its machine."""

    engine: Engine
    shape: ModelShape
    rates: MachineRates


def traced(subject: Subject, name: str, jobs: list[Job], max_batch_size: int) -> Iterator[Measured]:
    """All `jobs` at once through EngineLoop: the trace from its submission on, then its increment iterations."""
    vocabulary = subject.engine.figures.vocab_size
    jobs = [Job([token % vocabulary for token in job.prompt], job.max_new_tokens) for job in jobs]
    follower = Follower(subject.engine)
    began = time.perf_counter()
    run_trace(follower, jobs, Setup(Knobs(max_batch_size)))
    seconds = time.perf_counter() - began
    inside = sum(one.seconds for one in follower.ran)
    spans = [one.spans for one in follower.ran]
    yield Measured(
        name,
        len(follower.ran),
        floor(subject.shape, subject.rates, spans),
        seconds,
        {
            "output tokens a second": sum(job.max_new_tokens for job in jobs) / seconds,
            "share inside the engine": inside / seconds,
            USUAL: seconds / floor(subject.shape, subject.rates.usual(), spans).seconds,
        },
    )
    increments = [one for one in follower.ran if one.is_increment and len(one.spans) == max_batch_size]
    if increments:
        yield alike(f"{name}: increment at batch {max_batch_size}", increments, subject.shape, subject.rates)


def run_single(subject: Subject) -> Iterator[Measured]:
    """One request, 128 in and 128 out."""
    yield from traced(subject, "single", single(), 1)


def run_paper(subject: Subject) -> Iterator[Measured]:
    """The paper's trace."""
    yield from traced(subject, "paper", paper(), MAX_BATCH_SIZE)


def run_increments(subject: Subject) -> Iterator[Measured]:
    """Increment iterations by hand, the batches that fit."""
    batches, context = Batches(subject.engine), _context(subject)
    for batch in BATCHES:
        if batches.fits(batch, context + STEPS):
            yield increment(subject, batches, batch, context)


def run_initiations(subject: Subject) -> Iterator[Measured]:
    """Initiation iterations by hand, those that fit."""
    batches, length = Batches(subject.engine), _context(subject)
    for tokens in INITIATIONS:
        prompts = max(1, tokens // length)
        if batches.fits(prompts, length):
            yield initiation(subject, batches, prompts, length)


def increment(subject: Subject, batches: Batches, batch: int, context: int) -> Measured:
    """Iterations of so many requests, the first of which is not counted."""
    ran = batches.increments(batch, context, STEPS)
    return alike(f"increment, batch {batch}, context {context}", ran[1:], subject.shape, subject.rates)


def initiation(subject: Subject, batches: Batches, prompts: int, length: int) -> Measured:
    """Iterations of so many prompts, the first of which is not counted."""
    ran = batches.initiations(prompts, length, 1 + TIMES)
    return alike(f"initiation, {prompts} x {length} tokens", ran[1:], subject.shape, subject.rates)


def _context(subject: Subject) -> int:
    """`CONTEXT`, or less where the model knows less: whole blocks, with room for what is generated."""
    figures = subject.engine.figures
    return min(CONTEXT, (figures.max_model_len - STEPS) // figures.block_size * figures.block_size)


PHASES: dict[str, Callable[[Subject], Iterator[Measured]]] = {
    "single": run_single,
    "increment": run_increments,
    "initiation": run_initiations,
    "paper": run_paper,
}
