"""Phases: what the engine is timed at, each compared with its floor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from load.bench.engine.batches import Batches, RecordingEngine, TimedIteration
from load.bench.engine.floor import KINDS, Floor, ModelShape, floor
from load.bench.engine.rates import MachineRates
from load.bench.engine.timing import FULL, Scale
from load.in_process import Setup, run_in_process
from load.report import table
from load.trace import Request
from load.workloads import single
from services.engine.engine import Engine
from services.scheduling import Knobs

USUAL = "over the floor of median rates"


@dataclass(frozen=True, slots=True)
class Measured:
    """A phase of the engine beside its floor. `seconds`: what its iterations took together, or would take if each took
    the median."""

    name: str
    iterations: int
    floor: Floor
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)  # further figures of this phase, by name

    @property
    def ratio(self) -> float:
        return self.seconds / self.floor.seconds

    def json(self) -> dict[str, Any]:
        """As plain lists and dicts, with the floor in seconds and the ratio."""
        return {**asdict(self), "floor_seconds": self.floor.seconds, "ratio": self.ratio}


def alike(name: str, ran: Sequence[TimedIteration], shape: ModelShape, rates: MachineRates) -> Measured:
    """Measured from iterations that are nearly the same."""
    spans = [one.spans for one in ran]
    lowest = floor(shape, rates, spans)
    times = [one.seconds for one in ran]
    tokens = sum(span.tokens for one in ran for span in one.spans)
    seconds = statistics.median(times) * len(ran)
    return Measured(
        name,
        len(ran),
        lowest,
        seconds,
        {
            "tokens a second": tokens / seconds,
            "best over floor": min(times) * len(ran) / lowest.seconds,
            "share of bandwidth": lowest.moving / seconds,
            USUAL: seconds / floor(shape, rates.usual(), spans).seconds,
        },
    )


MAX_BATCH_SIZE = 32
BATCHES = (1, 8, 32)  # of increment iterations
CONTEXT = 512  # their tokens, and those of a prompt
INITIATIONS = (512, 2048)  # tokens of an iteration


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: an engine, the shape of its model, the rates of its machine; and how much."""

    engine: Engine
    shape: ModelShape
    rates: MachineRates
    scale: Scale = FULL


def traced(subject: Subject, name: str, requests: Sequence[Request], max_batch_size: int) -> Iterator[Measured]:
    """All `requests` at once through EngineLoop: the whole trace, then its increment iterations."""
    vocabulary = subject.engine.figures.vocab_size
    requests = [replace(request, prompt=[token % vocabulary for token in request.prompt]) for request in requests]
    recording = RecordingEngine(subject.engine)
    began = time.perf_counter()
    run_in_process(recording, requests, Setup(Knobs(max_batch_size)))
    seconds = time.perf_counter() - began
    inside = sum(one.seconds for one in recording.ran)
    spans = [one.spans for one in recording.ran]
    yield Measured(
        name,
        len(recording.ran),
        floor(subject.shape, subject.rates, spans),
        seconds,
        {
            "output tokens a second": sum(request.max_new_tokens for request in requests) / seconds,
            "share inside the engine": inside / seconds,
            USUAL: seconds / floor(subject.shape, subject.rates.usual(), spans).seconds,
        },
    )
    increments = [one for one in recording.ran if one.is_increment and len(one.spans) == max_batch_size]
    if increments:
        yield alike(f"{name}: increment at batch {max_batch_size}", increments, subject.shape, subject.rates)


def run_single(subject: Subject) -> Iterator[Measured]:
    """One request, 128 tokens in and 128 out."""
    yield from traced(subject, "single", single(), 1)


def run_paper(subject: Subject) -> Iterator[Measured]:
    """The paper's trace."""
    yield from traced(subject, "paper", subject.scale.trace, MAX_BATCH_SIZE)


def run_increments(subject: Subject) -> Iterator[Measured]:
    """Increment iterations put together by hand, for the batches that fit."""
    batches, context = Batches(subject.engine), _context(subject)
    for batch in BATCHES:
        if batches.fits(batch, context + subject.scale.steps):
            yield increment(subject, batches, batch, context)


def run_initiations(subject: Subject) -> Iterator[Measured]:
    """Initiation iterations put together by hand, those that fit."""
    batches, length = Batches(subject.engine), _context(subject)
    for tokens in INITIATIONS:
        prompts = max(1, tokens // length)
        if batches.fits(prompts, length):
            yield initiation(subject, batches, prompts, length)


def increment(subject: Subject, batches: Batches, batch: int, context: int) -> Measured:
    """Iterations of `batch` requests; the first iteration is not counted."""
    ran = batches.increments(batch, context, subject.scale.steps)
    return alike(f"increment, batch {batch}, context {context}", ran[1:], subject.shape, subject.rates)


def initiation(subject: Subject, batches: Batches, prompts: int, length: int) -> Measured:
    """Iterations of `prompts` prompts; the first iteration is not counted."""
    ran = batches.initiations(prompts, length, 1 + subject.scale.times)
    return alike(f"initiation, {prompts} x {length} tokens", ran[1:], subject.shape, subject.rates)


def _context(subject: Subject) -> int:
    """`CONTEXT`, or less where the model takes less: whole blocks, with room for the generated tokens."""
    figures = subject.engine.figures
    return min(CONTEXT, (figures.max_model_len - subject.scale.steps) // figures.block_size * figures.block_size)


PHASES: dict[str, Callable[[Subject], Iterator[Measured]]] = {
    "single": run_single,
    "increment": run_increments,
    "initiation": run_initiations,
    "paper": run_paper,
}


def phases_table(phases: list[Measured]) -> str:
    """Mean milliseconds of an iteration, and the parts of its floor; then the further figures of each phase."""
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
